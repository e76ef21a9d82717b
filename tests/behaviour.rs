//! What each algorithm and verb promises, with exact numbers, on every store.

mod algorithms;
mod groups;
mod orders;
mod verbs;
