//! The web console in a real Chromium, driven through WebDriver.

mod accessible;
mod attacks;
mod driver;
mod fleet;
mod layout;
mod operators;
mod pages;
mod screenshots;
