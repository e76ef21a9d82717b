//! All integration tests, in one binary, which is linked once. The tests share one Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]
#![allow(unreachable_pub, reason = "nothing here is reached from outside")]

mod acl;
mod acquires;
mod adaptive;
mod architecture;
mod bad_input;
mod bans;
mod batched_is_one_by_one;
mod batching;
mod behaviour;
mod boundary;
mod breaker;
mod calendar;
mod chaos;
mod check_options;
mod closed_connections;
mod cluster;
mod connecting;
mod corrupt_numbers;
mod decided_apart;
mod defined_gates;
mod deny_cache;
mod deny_cache_exact;
mod eviction;
mod expiry;
mod fallback;
mod fallback_reservations;
mod fallback_share;
mod fallback_warm_start;
mod faults;
#[cfg(feature = "admin")]
mod figures;
mod fixed_window;
mod full_memory;
mod full_queue;
mod give_backs_of_nothing;
mod health;
mod histories;
mod hold_scripts;
mod holds;
mod idle;
mod integer_keys;
mod keys;
mod large_debts;
mod late_checks;
mod leases;
#[cfg(feature = "calendar")]
mod limit_texts;
mod lua_agrees_with_reference;
mod max_delay;
mod merged_is_one_by_one;
#[cfg(feature = "metrics")]
mod metrics;
mod noscript;
mod observer;
mod override_writes;
mod overrides;
mod overrides_bounds;
mod partial_grants;
#[cfg(feature = "admin")]
mod patience;
mod permit_scripts;
mod permits_agree_with_oracle;
mod plain_errors;
mod planted_mistakes;
mod planted_permit_mistakes;
mod processes;
mod reconnecting;
#[cfg(target_os = "linux")] // reads /proc
mod reconnects;
mod redis_state;
mod reference_agrees_with_oracle;
#[cfg(feature = "regions")]
mod regions;
mod release_inbox;
mod reservations;
mod runtimes;
mod runtimes_batching;
mod scan;
mod scripts;
mod secrets;
mod sentinel;
mod sentinels_disagree;
mod shadow_errors;
mod show;
mod shutdown_after_outage;
mod stubs;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "admin")]
mod top_keys;
#[cfg(feature = "tracing")]
mod trace;
mod tutorial;
mod used_charges;
mod waiting;

use tidegate_test_support as support;
