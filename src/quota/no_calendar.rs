//! Stands in for `calendar.rs` without the feature `calendar`: there is no calendar.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Calendar {}

impl Calendar {
    pub(crate) const fn of_text(_text: &str) -> Option<Self> {
        None
    }

    pub(crate) const fn window_at(&self, _now_us: u64) -> Range<u64> {
        match *self {}
    }

    pub(crate) const fn parts(&self) -> (&'static str, String, &'static str) {
        match *self {}
    }

    pub(crate) const fn mean_us(&self) -> u64 {
        match *self {}
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl FromStr for Calendar {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Err(Error::config(format!("the calendar window {text:?} needs the feature `calendar` of tidegate")))
    }
}
