//! Tests of the console and of its JSON API, and of the access to both.

mod access;
mod api;
mod browser;
mod change_cases;
mod html;
mod mistakes;
