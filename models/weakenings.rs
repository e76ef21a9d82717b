// Included by `build.rs`.

/// A part of the production code that is checked.
struct Part {
    /// The name of the part, and of the file in `src` with its models.
    name: &'static str,
    /// Paths below the production code's `src`.
    files: &'static [&'static str],
    /// Replacements that make the part small enough to explore.
    reductions: &'static [Replacement],
    models: &'static [&'static str],
    weakenings: &'static [Weakening],
}

/// A bug that is planted in the part.
struct Weakening {
    name: &'static str,
    replacements: &'static [Replacement],
    /// The model that must fail.
    caught_by: &'static str,
}

/// A text that is in one of the files exactly once, and the text that replaces it.
type Replacement = (&'static str, &'static str);

const PARTS: &[Part] = &[
    Part {
        name: "lease_slot",
        files: &["local/lease/packed_key.rs", "local/lease/slot.rs"],
        // Keys of one word instead of three.
        reductions: &[("const LONGEST: usize = 24;", "const LONGEST: usize = 8;")],
        models: &[
            "a_unit_is_spent_or_taken_back_and_only_once",
            "no_unit_is_spent_after_it_was_taken_back",
            "no_unit_is_spent_for_another_key",
            "no_unit_is_spent_past_its_end",
            "the_newest_units_are_not_spent_by_the_end_of_the_older",
            "a_forgotten_unit_is_neither_spent_nor_taken_back",
            "a_refill_is_requested_once",
        ],
        weakenings: &[
            Weakening {
                name: "close_reads_the_units_before_it_takes_them",
                replacements: &[(
                    "(self.word.swap(generation, Ordering::AcqRel) & LOW) as u32",
                    "{ let left = self.word.load(Ordering::Acquire) & LOW; \
                     self.word.store(generation, Ordering::Release); left as u32 }",
                )],
                caught_by: "a_unit_is_spent_or_taken_back_and_only_once",
            },
            Weakening {
                name: "spend_stores_instead_of_swapping",
                replacements: &[(
                    "self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire)",
                    "{ self.word.store(after, Ordering::Release); Ok::<u64, u64>(after) }",
                )],
                caught_by: "a_unit_is_spent_or_taken_back_and_only_once",
            },
            Weakening {
                name: "generation_stays",
                replacements: &[("(word & !LOW).wrapping_add(LOW + 1)", "word & !LOW")],
                caught_by: "no_unit_is_spent_after_it_was_taken_back",
            },
            Weakening {
                name: "key_is_compared_before_the_word_is_read",
                replacements: &[
                    ("let mut word = self.word.load(Ordering::Acquire);", ""),
                    (
                        "                return Spend::Another;\n            }\n",
                        "                return Spend::Another;\n            }\n            \
                         let mut word = self.word.load(Ordering::Acquire);\n",
                    ),
                ],
                caught_by: "no_unit_is_spent_for_another_key",
            },
            Weakening {
                name: "generation_stays_for_the_next_key",
                replacements: &[("(word & !LOW).wrapping_add(LOW + 1)", "word & !LOW")],
                caught_by: "no_unit_is_spent_for_another_key",
            },
            Weakening {
                name: "word_is_read_relaxed",
                replacements: &[(
                    "let mut word = self.word.load(Ordering::Acquire);",
                    "let mut word = self.word.load(Ordering::Relaxed);",
                )],
                caught_by: "no_unit_is_spent_past_its_end",
            },
            Weakening {
                name: "units_are_opened_relaxed",
                replacements: &[(
                    "next_generation(closed) | u64::from(units), Ordering::Release",
                    "next_generation(closed) | u64::from(units), Ordering::Relaxed",
                )],
                caught_by: "no_unit_is_spent_past_its_end",
            },
            Weakening {
                name: "ends_are_read_before_the_word",
                replacements: &[
                    (
                        "let mut word = self.word.load(Ordering::Acquire);",
                        "let ends = self.ends.load(Ordering::Acquire); \
                         let mut word = self.word.load(Ordering::Acquire);",
                    ),
                    ("            let ends = self.ends.load(Ordering::Acquire);\n", ""),
                ],
                caught_by: "no_unit_is_spent_past_its_end",
            },
            Weakening {
                name: "ends_are_written_after_the_units",
                replacements: &[
                    ("        self.ends.store(ends, Ordering::Release);\n", ""),
                    (
                        "next_generation(closed) | u64::from(units), Ordering::Release);",
                        "next_generation(closed) | u64::from(units), Ordering::Release); \
                         self.ends.store(ends, Ordering::Release);",
                    ),
                ],
                caught_by: "no_unit_is_spent_past_its_end",
            },
            Weakening {
                name: "units_are_attributed_to_the_wrong_block",
                replacements: &[("(if units > newest {", "(if units >= newest {")],
                caught_by: "the_newest_units_are_not_spent_by_the_end_of_the_older",
            },
            Weakening {
                name: "block_is_chosen_once",
                replacements: &[
                    (
                        "            let generation = word >> 32;\n",
                        "            let generation = word >> 32;\n            \
                         let ends_ms = ends_ms(word & LOW, newest, ends);\n",
                    ),
                    ("!is_before(now_us, ends_ms(units, newest, ends)) {", "!is_before(now_us, ends_ms) {"),
                ],
                caught_by: "the_newest_units_are_not_spent_by_the_end_of_the_older",
            },
            Weakening {
                name: "forget_stores_instead_of_swapping",
                replacements: &[(
                    "self.word.compare_exchange(word, word & !LOW, Ordering::AcqRel, Ordering::Acquire).is_ok()",
                    "{ self.word.store(word & !LOW, Ordering::Release); true }",
                )],
                caught_by: "a_forgotten_unit_is_neither_spent_nor_taken_back",
            },
            Weakening {
                name: "want_does_not_compare",
                replacements: &[(
                    "&& self.about.fetch_or(WANTED, Ordering::AcqRel) & WANTED == 0",
                    "&& { self.about.fetch_or(WANTED, Ordering::AcqRel); true }",
                )],
                caught_by: "a_refill_is_requested_once",
            },
        ],
    },
    Part {
        name: "dispatchers",
        files: &["batch/dispatchers.rs"],
        reductions: &[],
        models: &[
            "no_enqueued_check_is_left_without_a_dispatcher",
            "no_check_of_any_shard_is_left_beside_direct_sends",
            "no_check_is_left_by_two_dispatchers",
            "no_check_is_left_by_an_overdue_dispatcher",
        ],
        weakenings: &[
            Weakening {
                name: "exiting_dispatcher_does_not_take_again",
                replacements: &[(
                    "if let Some(batch) = take() {\n            self.remember(",
                    "if let Some(batch) = None::<B> {\n            self.remember(",
                )],
                caught_by: "no_enqueued_check_is_left_without_a_dispatcher",
            },
            Weakening {
                name: "exiting_dispatcher_takes_again_before_it_is_forgotten",
                replacements: &[
                    ("        self.forget(id);\n", ""),
                    (
                        "        self.has_landed(in_flight);\n        None",
                        "        self.forget(id);\n        self.has_landed(in_flight);\n        None",
                    ),
                ],
                caught_by: "no_enqueued_check_is_left_without_a_dispatcher",
            },
            Weakening {
                name: "forget_does_not_publish",
                replacements: &[(
                    "running.counted.retain(|(counted, _)| *counted != id);\n        self.publish(&running);",
                    "running.counted.retain(|(counted, _)| *counted != id);",
                )],
                caught_by: "no_check_of_any_shard_is_left_beside_direct_sends",
            },
            Weakening {
                name: "caller_starts_a_dispatcher_before_it_enqueues",
                replacements: &[
                    ("        queue.push(check);\n", ""),
                    (
                        "        let started = self.dispatchers.start(waiting, lateness);\n",
                        "        let started = self.dispatchers.start(waiting, lateness);\n        \
                         lock(&self.shards[shard]).push(check);\n",
                    ),
                ],
                caught_by: "no_enqueued_check_is_left_without_a_dispatcher",
            },
            Weakening {
                name: "second_dispatcher_does_not_take_again",
                replacements: &[(
                    "if let Some(batch) = take() {\n            self.remember(",
                    "if let Some(batch) = None::<B> {\n            self.remember(",
                )],
                caught_by: "no_check_is_left_by_two_dispatchers",
            },
            Weakening {
                name: "overdue_dispatcher_does_not_take_again",
                replacements: &[(
                    "if let Some(batch) = take() {\n            self.remember(",
                    "if let Some(batch) = None::<B> {\n            self.remember(",
                )],
                caught_by: "no_check_is_left_by_an_overdue_dispatcher",
            },
        ],
    },
    Part {
        name: "denials",
        files: &["local/deny_cache/denials.rs"],
        reductions: &[("const SLOTS: usize = 4_096;", "const SLOTS: usize = 2;")],
        models: &[
            "no_denial_is_found_after_its_key_was_forgotten",
            "no_denial_is_found_after_a_later_admission",
            "no_denial_is_found_without_a_later_charge",
            "a_denial_that_is_not_out_of_date_is_found",
        ],
        weakenings: &[
            Weakening {
                name: "unconfirmed_denial_is_found",
                replacements: &[(".filter(|denied| denied.is_confirmed)", "")],
                caught_by: "no_denial_is_found_after_its_key_was_forgotten",
            },
            Weakening {
                name: "unconfirmed_denial_is_found_after_an_admission",
                replacements: &[(".filter(|denied| denied.is_confirmed)", "")],
                caught_by: "no_denial_is_found_after_a_later_admission",
            },
            Weakening {
                name: "denial_is_confirmed_without_reading_the_counters_again",
                replacements: &[(
                    "denied.is_confirmed = self.is_up_to_date(denied.snapshot, denied.server_now_us);",
                    "denied.is_confirmed = true;",
                )],
                caught_by: "no_denial_is_found_after_its_key_was_forgotten",
            },
            Weakening {
                name: "denial_is_confirmed_before_it_is_inserted",
                replacements: &[(
                    "server_now_us, snapshot, is_confirmed: false }",
                    "server_now_us, snapshot, is_confirmed: self.is_up_to_date(snapshot, server_now_us) }",
                )],
                caught_by: "no_denial_is_found_after_its_key_was_forgotten",
            },
            Weakening {
                name: "forget_removes_before_it_counts",
                replacements: &[
                    ("        self.forgotten[slot(target)].fetch_add(1, Ordering::SeqCst);\n", ""),
                    (
                        "        self.target_cache.remove(target);\n",
                        "        self.target_cache.remove(target);\n        \
                         self.forgotten[slot(target)].fetch_add(1, Ordering::SeqCst);\n",
                    ),
                ],
                caught_by: "no_denial_is_found_after_its_key_was_forgotten",
            },
            Weakening {
                name: "until_is_raised_by_release",
                replacements: &[(
                    "fetch_max(until_us, Ordering::SeqCst)",
                    "fetch_max(until_us, Ordering::Release)",
                )],
                caught_by: "no_denial_is_found_after_a_later_admission",
            },
            Weakening {
                name: "admission_reads_until_by_acquire",
                replacements: &[(
                    "self.until_us[slot].load(Ordering::SeqCst)",
                    "self.until_us[slot].load(Ordering::Acquire)",
                )],
                caught_by: "no_denial_is_found_after_a_later_admission",
            },
            Weakening {
                name: "admission_is_recorded_by_release",
                replacements: &[(
                    "fetch_max(now_us, Ordering::SeqCst)",
                    "fetch_max(now_us, Ordering::Release)",
                )],
                caught_by: "no_denial_is_found_after_a_later_admission",
            },
            Weakening {
                name: "admission_is_read_by_acquire",
                replacements: &[(
                    "self.latest_admission_us[snapshot.slot].load(Ordering::SeqCst)",
                    "self.latest_admission_us[snapshot.slot].load(Ordering::Acquire)",
                )],
                caught_by: "no_denial_is_found_after_a_later_admission",
            },
            Weakening {
                name: "charge_is_not_recorded",
                replacements: &[(
                    "if self.raise(slot(target), now_us) > 0 {\n            self.target_cache.retain",
                    "if self.until_us(target) > 0 {\n            self.target_cache.retain",
                )],
                caught_by: "no_denial_is_found_without_a_later_charge",
            },
            Weakening {
                name: "earlier_denial_stays_as_it_is_after_a_charge",
                replacements: &[("denied.server_now_us > now_us || (", "true || (")],
                caught_by: "no_denial_is_found_without_a_later_charge",
            },
            Weakening {
                name: "admission_of_the_same_time_is_ignored",
                replacements: &[("latest_us >= server_now_us", "latest_us > server_now_us")],
                caught_by: "no_denial_is_found_after_a_later_admission",
            },
        ],
    },
    Part {
        name: "circuits",
        files: &["runtime/background/job_slot.rs", "local/breaker/circuit.rs"],
        // One failure opens a circuit.
        reductions: &[("const MAX_FAILURES: u32 = 5;", "const MAX_FAILURES: u32 = 1;")],
        models: &["an_open_circuit_has_a_probe", "notifications_alternate_and_end_with_the_state"],
        weakenings: &[
            Weakening {
                name: "probe_does_not_look_again",
                replacements: &[("is_needed().then(|| Self::claim(&slot)).flatten()", "None")],
                caught_by: "an_open_circuit_has_a_probe",
            },
            Weakening {
                name: "probe_looks_before_it_frees_the_slot",
                replacements: &[(
                    "        drop(self);\n        is_needed().then(",
                    "        let is_needed = is_needed();\n        drop(self);\n        is_needed.then(",
                )],
                caught_by: "an_open_circuit_has_a_probe",
            },
            Weakening {
                name: "slot_is_freed_by_release",
                replacements: &[(
                    "self.0.store(false, Ordering::SeqCst)",
                    "self.0.store(false, Ordering::Release)",
                )],
                caught_by: "an_open_circuit_has_a_probe",
            },
            Weakening {
                name: "slot_is_read_by_acquire",
                replacements: &[("self.0.load(Ordering::SeqCst)", "self.0.load(Ordering::Acquire)")],
                caught_by: "an_open_circuit_has_a_probe",
            },
            Weakening {
                name: "circuit_is_opened_by_release",
                replacements: &[(
                    "is_open.store(true, Ordering::SeqCst)",
                    "is_open.store(true, Ordering::Release)",
                )],
                caught_by: "an_open_circuit_has_a_probe",
            },
            Weakening {
                name: "circuit_is_read_by_acquire",
                replacements: &[(
                    "self.is_open.load(Ordering::SeqCst)",
                    "self.is_open.load(Ordering::Acquire)",
                )],
                caught_by: "an_open_circuit_has_a_probe",
            },
            Weakening {
                name: "open_circuit_is_opened_again",
                replacements: &[("        if circuit.is_open() {\n            return;\n        }\n", "")],
                caught_by: "notifications_alternate_and_end_with_the_state",
            },
            Weakening {
                name: "observer_is_notified_without_the_lock",
                replacements: &[(
                    "            if *open == 0 {\n                notify();\n            }\n        }\n",
                    "            let is_last = *open == 0;\n            drop(open);\n            \
                     if is_last {\n                notify();\n            }\n        }\n",
                )],
                caught_by: "notifications_alternate_and_end_with_the_state",
            },
        ],
    },
    Part {
        name: "snapshot",
        files: &["local/overrides/snapshot.rs"],
        reductions: &[],
        models: &[
            "a_check_that_starts_after_a_reading_was_applied_uses_it",
            "a_check_uses_one_reading",
            "an_older_reading_does_not_replace_a_newer_one",
        ],
        weakenings: &[
            Weakening {
                name: "old_reading_is_removed_before_the_new_one_is_stored",
                replacements: &[
                    ("impl<T> Snapshot<T> {", "impl<T: Default> Snapshot<T> {"),
                    (
                        "*write(&self.known) = new;",
                        "*write(&self.known) = Arc::default(); *write(&self.known) = new;",
                    ),
                ],
                caught_by: "a_check_uses_one_reading",
            },
            Weakening {
                name: "flag_is_set_only_once",
                replacements: &[(
                    "false => self.word.fetch_and(!ACTIVE, Ordering::Relaxed),",
                    "false => 0,",
                )],
                caught_by: "a_check_that_starts_after_a_reading_was_applied_uses_it",
            },
            Weakening {
                name: "readings_overlap",
                replacements: &[("        let _reading = lock(&self.reading);\n", "")],
                caught_by: "an_older_reading_does_not_replace_a_newer_one",
            },
        ],
    },
];
