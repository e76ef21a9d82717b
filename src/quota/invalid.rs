//! Why numbers do not make a quota. Known at compile time where they are.

use crate::error::Error;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Invalid {
    RateUnits,
    Period,
    Capacity,
    TooSlow,
    Limit,
    Window,
    CounterRange,
    NotFixedWindow,
    NotSlidingLog,
    Offset,
}

impl Invalid {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::RateUnits => {
                "a rate needs 1 to 2^48 units; to refuse everything use OnFailure or a block, not a rate of 0"
            }
            Self::Period => "a rate's period must be whole microseconds, from 1 us to 10 years",
            Self::Capacity => "a capacity must be 1 to 2^48 units",
            Self::TooSlow => {
                "this rate needs more than 2^48 us (8.9 years) to fill the capacity: raise the rate or lower the capacity"
            }
            Self::Limit => "a limit must be 1 to 2^48 units",
            Self::Window => "a window must be whole microseconds, from 1 ms to 10 years",
            Self::CounterRange => {
                "a sliding counter's limit times its window in microseconds must be at most 2^52: shorten the window or use another algorithm"
            }
            Self::NotFixedWindow => {
                "only a fixed window can be aligned to the clock (a sliding counter always is)"
            }
            Self::NotSlidingLog => "only a sliding log can count denied requests",
            Self::Offset => "an offset must be whole microseconds and shorter than the window",
        }
    }

    pub(crate) const fn panic(self) -> ! {
        panic!("{}", self.text())
    }

    pub(crate) fn into_error(self) -> Error {
        Error::config(self.text())
    }
}
