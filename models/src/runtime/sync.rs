//! Stands for `src/runtime/sync.rs`: the same primitives, modeled by loom.

pub(crate) use std::sync::PoisonError;

pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, RwLock};
use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(value: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    value.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(value: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    value.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) mod atomic {
    use std::ops::Deref;

    pub(crate) use loom::sync::atomic::Ordering;

    /// A `SeqCst` load of loom does not return a `SeqCst` store that precedes another one. It may still
    /// return the initial value that precedes them. The initial value is therefore stored once more.
    macro_rules! atomic {
        ($($name:ident of $value:ty;)*) => {$(
            #[derive(Debug)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    let atomic = loom::sync::atomic::$name::new(value);
                    atomic.store(value, Ordering::SeqCst);
                    Self(atomic)
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new(<$value>::default())
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        )*};
    }

    atomic! {
        AtomicBool of bool;
        AtomicU32 of u32;
        AtomicU64 of u64;
        AtomicUsize of usize;
    }
}
