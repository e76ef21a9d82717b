//! What is wrong in a file is told with its place, all of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use tidegate::Error;
use tidegate::rules::{Loader, Mistake, Mistakes, Rules};

/// Each file in `fixtures/mistakes`, and what is said of it: line, column, message, and
/// after ` = ` the hint.
const MISTAKES: &[(&str, &[&str])] = &[
    ("broken-number", &["6:26 `requests_per_unit` is a whole number, not `1.5`"]),
    (
        "bucket-too-slow",
        &[
            "6:26 token_bucket of 1 in 31536000s: this rate needs more than 2^48 us (8.9 years) to fill the capacity: raise the rate or lower the capacity",
        ],
    ),
    (
        "burst-of-a-window",
        &[
            "7:14 a fixed_window has no `burst`: all of it can be had at once = leave it out, or add `algorithm: token_bucket`",
        ],
    ),
    ("cost-above-the-limit", &["6:26 a cost of 6 can never pass a limit of 5"]),
    ("descriptors-that-are-no-list", &["3:3 `descriptors` is a list, not a map = begin each item with `- `"]),
    (
        "domain-twice",
        &[
            "3:9 the domain `auth` is there already, at domain-twice.yaml:1 = put all its rules into one document",
        ],
    ),
    ("duplicate-field", &["7:7 `unit` stands here twice; the first is on line 5 = leave one of them"]),
    (
        "duration-that-is-none",
        &["5:14 `every` is a duration, not `15 minutes` = write such as 500ms, 90s, 15m, 1h30m, 7d or 2w"],
    ),
    ("empty-domain", &["1:9 the `domain` is empty"]),
    ("empty-key", &["3:10 the `key` is empty"]),
    ("empty", &["0:0 this file holds no rules"]),
    ("every-beside-unit", &["6:14 `every` stands beside `unit` = leave one of them"]),
    ("field-in-the-wrong-map", &["7:7 a rate_limit has no field `shadow_mode` = it belongs in a descriptor"]),
    (
        "field-that-nobody-knows",
        &[
            "7:7 a rate_limit has no field `colour` = it can hold unit, unit_multiplier, requests_per_unit, unlimited, name, replaces, every, algorithm, burst, cost, on_failure, lease, tiers",
        ],
    ),
    ("flag-that-is-no-flag", &["4:18 `shadow_mode` is true or false, not the text `perhaps`"]),
    (
        "lease-of-a-leaky-bucket",
        &[
            "8:14 a leaky bucket cannot be leased, since each ask has a place in its queue: use it without `leased`, or a token bucket",
        ],
    ),
    ("letters-that-are-not-ascii", &["5:25 there is no unit `minüte` = did you mean `minute`?"]),
    (
        "many-mistakes",
        &[
            "2:9 there is no charge `maybe` = it is one of all, each",
            "5:25 there is no unit `minutes` = did you mean `minute`?",
            "5:53 `requests_per_unit` is at least 0, not -1",
            "7:9 a descriptor needs a `key`",
            "9:21 a rate_limit needs `requests_per_unit` = 0 denies all; `unlimited: true` instead lets all pass",
            "10:5 a descriptor has no field `kee` = did you mean `key`?",
            "10:5 a descriptor needs a `key`",
        ],
    ),
    (
        "descriptor-beside-its-action",
        &[
            "4:9 an action has no field `header_name` = it belongs in a request_headers",
            "5:9 an action has no field `descriptor_key` = it belongs in a request_headers",
            "7:5 a descriptor has no field `actions` = it belongs in an entry of `rate_limits`",
            "7:5 a descriptor needs a `key`",
        ],
    ),
    (
        "mapping-envoy-fields",
        &[
            "3:5 `stage` is not honoured: there is one layer here, not stages of a filter: leave it out",
            "4:5 `disable_key` is not honoured: there is no runtime of Envoy's here: take the entry out of the file instead",
            "5:5 `limit` is not honoured: limits stand in `descriptors` alone",
            "6:5 `hits_addend` is not honoured: how much a request costs is said by the layer's `cost`, or by the rule's `cost`",
            "7:5 `apply_on_stream_done` is not honoured: what a response changes is said by the layer's `charge`",
            "9:9 `source_cluster` is not honoured: there are no clusters of Envoy's here: use generic_key",
            "10:9 `destination_cluster` is not honoured: there are no clusters of Envoy's here: use generic_key",
            "11:9 `metadata` is not honoured: there is no metadata of Envoy's here: use extension",
            "12:9 `dynamic_metadata` is not honoured: there is no metadata of Envoy's here: use extension",
            "13:34 `typed_config` is not honoured: there are no extensions of Envoy's here: the service provides values by names",
        ],
    ),
    (
        "mapping-generic-key-without-a-value",
        &[
            "4:22 a generic_key needs a `descriptor_value`",
            "5:24 a generic_key has no field `value` = it belongs in a descriptor",
            "5:52 the `descriptor_value` is empty",
        ],
    ),
    (
        "mapping-header-names",
        &[
            "4:41 no header can have the name `:scheme` = it is a token of HTTP, or one of :authority, :method, :path",
            "5:41 no header can have the name `:methd` = did you mean `:method`?",
            "6:41 no header can have the name `x key` = it is a token of HTTP, or one of :authority, :method, :path",
            "7:26 a request_headers needs a `descriptor_key`",
            "8:26 a request_headers needs a `header_name`",
            "9:22 no header can have the name `a/b` = it is a token of HTTP, or one of :authority, :method, :path",
        ],
    ),
    (
        "mapping-matchers",
        &[
            "4:29 a header_value_match needs `headers`",
            "8:26 `exact_match` is not honoured: Envoy has given it up: write `string_match: { exact: … }`",
            "9:26 `safe_regex_match` is not honoured: there are no regular expressions here: use prefix, suffix or contains",
            "10:42 `safe_regex` is not honoured: there are no regular expressions here: use prefix, suffix or contains",
            "11:60 `prefix` stands beside `exact`: a string_match is one of them = leave one of them",
            "12:40 a string_match says nothing = it is one of exact, prefix, suffix, contains",
            "13:52 an empty `contains` is met by all = use `present_match`",
            "14:69 `present_match` stands beside `string_match` = leave one of them",
            "15:15 a header to match needs a `name`",
        ],
    ),
    (
        "mapping-no-actions",
        &[
            "3:5 an entry of `rate_limits` needs `actions` = begin each action with `- `",
            "4:5 an entry of `rate_limits` needs `actions` = begin each action with `- `",
        ],
    ),
    (
        "mapping-prefix-too-long",
        &["4:54 `v4_prefix_mask_len` is at most 32", "4:78 `v6_prefix_mask_len` is at most 128"],
    ),
    (
        "mapping-unknown-action",
        &[
            "4:9 an action has no field `remote_adress` = did you mean `remote_address`?",
            "5:9 an action says nothing = write `remote_address: {}`",
            "6:9 an action says nothing = it is one of remote_address, masked_remote_address, request_headers, query_parameters, generic_key, header_value_match, query_parameter_value_match, method, path, path_template, extension",
            "8:17 `method` stands beside `remote_address`: an action is one of them = leave one of them",
            "9:9 an action is a map of remote_address, masked_remote_address, request_headers, query_parameters, generic_key, header_value_match, query_parameter_value_match, method, path, path_template, extension, not the text `path`",
        ],
    ),
    (
        "tier-of-a-request",
        &[
            "2:41 `extension` stands beside `header_name`: the tier of a request is one of them = leave one of them",
            "5:7 the tier of a request is a map of header_name, extension, not the text `pro`",
            "8:9 the tier of a request has no field `header` = it can hold header_name, extension",
        ],
    ),
    ("multiplier-of-zero", &["6:24 `unit_multiplier` is at least 1"]),
    (
        "name-of-xds",
        &[
            "1:1 `name` is not honoured: it names a resource of Envoy's xDS, which is not read here: leave it out",
        ],
    ),
    ("negative-number", &["6:26 `requests_per_unit` is at least 0, not -5"]),
    ("no-domain", &["1:1 a document needs a `domain`"]),
    ("no-key", &["3:5 a descriptor needs a `key`"]),
    (
        "no-requests-per-unit",
        &[
            "5:7 a rate_limit needs `requests_per_unit` = 0 denies all; `unlimited: true` instead lets all pass",
        ],
    ),
    (
        "no-unit",
        &[
            "5:7 a rate_limit needs a `unit` (or `every`) = a unit is one of second, minute, hour, day, week, month, year",
        ],
    ),
    ("no-yaml", &["2:14 this cannot be read: unclosed bracket '['"]),
    ("number-in-quotes", &["6:26 `requests_per_unit` is a whole number, not the text `5`"]),
    ("number-too-large", &["6:26 `requests_per_unit` is at most 2^48"]),
    (
        "quota-mode",
        &[
            "4:5 `quota_mode` is not honoured: it fills metadata for Envoy's filter, of which there is none here: use shadow_mode, or leave it out",
        ],
    ),
    (
        "rate-limit-beside-its-map",
        &[
            "4:5 a descriptor has no field `unit` = it belongs in a rate_limit",
            "5:5 a descriptor has no field `requests_per_unit` = it belongs in a rate_limit",
        ],
    ),
    (
        "rate-limit-that-is-empty",
        &[
            "3:10 the `rate_limit` of this descriptor is empty = leave it out, or move what belongs to it further to the right",
            "5:5 a descriptor has no field `unit` = it belongs in a rate_limit",
        ],
    ),
    (
        "replaces-a-name-that-is-not-there",
        &["10:17 no rule of `auth` has the name `specfic` = did you mean `specific`?"],
    ),
    ("replaces-itself", &["8:26 `slow` replaces itself"]),
    (
        "replaces-that-is-no-list",
        &["7:17 `replaces` is a list, not the text `slow` = begin each item with `- `"],
    ),
    (
        "replaces-without-a-name",
        &["7:26 what is replaced has an empty `name`", "7:32 what is replaced has no `name`"],
    ),
    (
        "same-key-twice",
        &[
            "5:10 the key `user` without a value stands here already, at same-key-twice.yaml:3 = put what both say into one descriptor",
        ],
    ),
    (
        "same-value-twice",
        &[
            "7:12 the key `user` with this value stands here already, at same-value-twice.yaml:3 = put what both say into one descriptor",
        ],
    ),
    (
        "same-wildcard-twice-below",
        &[
            "6:29 the key `path` with this value stands here already, at same-wildcard-twice-below.yaml:5 = put what both say into one descriptor",
        ],
    ),
    (
        "share-threshold-without-wildcard",
        &[
            "5:22 `share_threshold` is for a `value` that ends with `*` = without a value, or with one value, there is nothing to share",
        ],
    ),
    ("tab", &["3:2 this cannot be read: tabs disallowed within this context (block indentation)"]),
    ("tier-without-a-number", &["7:21 the tier `pro` needs `requests_per_unit`"]),
    (
        "unit-that-nobody-knows",
        &["5:13 there is no unit `fortnight` = it is one of second, minute, hour, day, week, month, year"],
    ),
    ("unknown-algorithm", &["7:18 there is no algorithm `token_buket` = did you mean `token_bucket`?"]),
    ("unknown-charge", &["2:9 there is no charge `both` = it is one of all, each"]),
    (
        "unknown-field-of-a-descriptor",
        &["4:5 a descriptor has no field `ratelimit` = did you mean `rate_limit`?"],
    ),
    (
        "unknown-field-of-a-document",
        &["2:1 a document has no field `descriptor` = did you mean `descriptors`?"],
    ),
    (
        "unknown-field-of-a-rate-limit",
        &[
            "5:7 a rate_limit needs `requests_per_unit` = 0 denies all; `unlimited: true` instead lets all pass",
            "6:7 a rate_limit has no field `request_per_unit` = did you mean `requests_per_unit`?",
        ],
    ),
    ("unknown-on-failure", &["7:19 there is no on_failure `opened` = did you mean `open`?"]),
    ("unknown-unit", &["5:13 there is no unit `minutes` = did you mean `minute`?"]),
    ("unlimited-with-a-unit", &["6:13 an unlimited rule has no `unit` = leave it out, or `unlimited`"]),
    (
        "wildcard-in-a-key",
        &["3:10 a `key` is met as it is, without `*` = a `*` can stand at the end of a `value`"],
    ),
    ("window-too-long", &["6:24 a window is at most 10 years long"]),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/rules/fixtures/mistakes")
}

fn told(mistake: &Mistake) -> String {
    let hint = mistake.suggestion().map(|hint| format!(" = {hint}")).unwrap_or_default();
    let message = mistake.message().replace(&format!("{}/", folder().display()), "");
    format!("{}:{} {message}{hint}", mistake.line(), mistake.column())
}

fn mistakes(name: &str) -> Mistakes {
    Rules::load(folder().join(format!("{name}.yaml"))).unwrap_err()
}

#[test]
fn each_mistake_is_told_with_its_line_and_column() {
    for (name, expected) in MISTAKES {
        let mistakes: Vec<String> = mistakes(name).iter().map(told).collect();
        assert_eq!(mistakes, *expected, "{name}");
    }
}

#[test]
fn no_file_of_mistakes_is_left_out() {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let listed: BTreeSet<String> = MISTAKES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, listed);
}

#[test]
fn a_mistake_shows_the_line_and_points_at_the_word() {
    let text = mistakes("unknown-unit").to_string();
    let (_, text) = text.split_once("unknown-unit.yaml:").unwrap();
    assert_eq!(
        text,
        "5:13: there is no unit `minutes`\n  |\n5 |       unit: minutes\n  |             ^^^^^^^\n  = did you mean `minute`?"
    );
}

#[test]
fn all_mistakes_of_a_folder_are_told_in_the_order_of_its_files() {
    let mistakes = Rules::load(folder()).unwrap_err();
    let files: Vec<&str> = mistakes.iter().map(Mistake::file).collect();
    assert!(files.is_sorted());
    for (name, expected) in MISTAKES {
        let own = mistakes.iter().filter(|mistake| mistake.file().ends_with(&format!("/{name}.yaml")));
        // Beside each other these files name one domain more than once, too.
        assert!(own.count() >= expected.len(), "{name}");
    }
    let error = Error::from(mistakes);
    assert!(error.is_config());
    assert!(error.to_string().contains("did you mean `minute`?"));
}

#[test]
fn a_domain_in_two_documents_is_a_mistake_unless_they_are_merged() {
    let user = "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }]";
    let group = user.replace("user", "group");
    let mistakes = Loader::new().parse([("a.yaml", user), ("b.yaml", &group)]).unwrap_err();
    assert_eq!(
        mistakes.iter().map(told).collect::<Vec<_>>(),
        ["1:9 the domain `d` is there already, at a.yaml:1 = put all its rules into one document"]
    );
    let merging = Loader::new().merge_domains(true);
    assert_eq!(merging.parse([("a.yaml", user), ("b.yaml", &group)]).unwrap().iter().count(), 2);
    let mistakes = merging.parse([("a.yaml", user), ("b.yaml", user)]).unwrap_err();
    assert_eq!(
        mistakes.iter().map(told).collect::<Vec<_>>(),
        [
            "2:22 the key `user` without a value stands here already, at a.yaml:2 = put what both say into one descriptor"
        ]
    );
}

#[test]
fn of_a_long_line_a_part_is_shown() {
    let many: String = (0..1_000).map(|at| format!("{{ key: a{at} }}, ")).collect();
    let text = format!("domain: d\ndescriptors: [{many}{{ key: b, kee: 1 }}]");
    let text = Rules::parse("a.yaml", &text).unwrap_err().to_string();
    let shown: Vec<&str> = text.lines().collect();
    let at = shown[3].find('^').unwrap();
    assert_eq!(&shown[2][at..at + 3], "kee");
    assert!(shown[2].len() < 200);
}
