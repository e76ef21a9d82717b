//! Errors in rule files are all reported, each with its position.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use tidegate::Error;
use tidegate_rules::{ConfigError, ConfigErrors, Loader, Rules};

/// Each file in `fixtures/mistakes` and its errors: line, column and message, and after ` = ` the hint.
const EXPECTED: &[(&str, &[&str])] = &[
    (
        "ban",
        &[
            "3:76 `after` must be at least 1",
            "4:67 a ban needs `for` = write `ban: { after: 20, within: 10m, for: 1h }`",
            "5:88 `within` must be a duration, not `ten` = write a duration such as 500ms, 90s, 15m, 1h30m, 7d or 2w",
            "6:67 a ban whose `for` is 544320000s: it must be whole microseconds, from 1 ms to 10 years",
            "7:67 a ban after 2000000000 denials: `after` must be 1 to 1,000,000,000 denials",
            "8:80 a ban has no field `withn` = did you mean `within`?",
            "9:93 `lasts` is not supported: write `for`",
            "10:67 a ban must be a map with the fields after, within, for, not `20`",
            "11:51 `ban` cannot be combined with `unlimited` = remove one of them",
            "12:48 `ban` cannot be combined with `in_flight`: a ban counts denials of a rate, and an in-flight limit has none = remove one of them",
            "13:78 `ban` cannot be combined with `lease`: denials caused by units that other processes lease would count = remove one of them",
            "14:67 `ban` needs a limit above 0: a limit of 0 denies without a check, so no denial is counted = remove one of them",
        ],
    ),
    (
        "regions",
        &[
            "3:71 there is no regions `escrow` = expected one of gossip",
            "4:71 there is no regions `true` = expected one of gossip",
            "5:52 an in-flight limit cannot be replicated: its permits are held in one region",
            "6:74 a calendar window cannot be replicated: use a window that is aligned to the clock",
            "7:55 `regions` cannot be combined with `unlimited` = remove one of them",
            "8:84 `ban` cannot be combined with `regions`: denials are counted in one region = remove one of them",
            "9:12 `charge_used` cannot be combined with `regions`: units used are counted in one region = remove one of them",
        ],
    ),
    (
        "ban-beside-in-flight",
        &[
            "4:12 `ban` needs `charge: each` beside `in_flight`, which the rule `auth.upload` has: a step that also acquires permits counts no denials = add `charge: each` to the document, or put one of the rules into another domain",
        ],
    ),
    (
        "ban-in-quota-mode",
        &[
            "4:10 `ban` cannot be combined with `quota_mode`: its denials may be of requests that pass = remove one of them",
        ],
    ),
    ("broken-number", &["6:26 `requests_per_unit` must be a whole number, not `1.5`"]),
    (
        "bucket-too-slow",
        &[
            "6:26 token_bucket of 1 in 31536000s: this rate needs more than 2^48 us (8.9 years) to fill the capacity: raise the rate or lower the capacity",
        ],
    ),
    (
        "burst-of-a-window",
        &[
            "7:14 a fixed_window has no `burst`: the whole limit can be used at once = remove it, or add `algorithm: token_bucket`",
        ],
    ),
    (
        "candidate",
        &[
            "3:94 this candidate is no stricter than the limit: 5/d = lower its number, or raise the limit beside it",
            "4:94 `requests_per_unit` must be at least 1",
            "5:73 a candidate needs `requests_per_unit`",
            "6:86 the candidate of this rule has `requests_per_unit`, as its rate_limit = use the same fields in both",
            "7:75 the candidate of this rule has `in_flight`, as its rate_limit = use the same fields in both",
            "8:57 `candidate` cannot be combined with `unlimited` = remove one of them",
            "9:12 a rule in shadow mode needs no `candidate`: it denies nothing itself = remove `shadow_mode`, or the `candidate`",
            "10:103 a cost of 4 can never pass a limit of 3",
            "11:75 a candidate has no field `request_per_unit` = did you mean `requests_per_unit`?",
            "12:120 this candidate is no stricter than the limit: 4/h burst 6 = lower its number, or raise the limit beside it",
            "13:95 this candidate is no stricter than the limit: 4/h = lower its number, or raise the limit beside it",
            "14:74 a candidate must be a map with the fields requests_per_unit, burst, in_flight, not `3`",
            "15:104 a fixed_window has no `burst`: the whole limit can be used at once = remove it, or add `algorithm: token_bucket`",
            "16:77 a limit in flight has no `burst` = remove it",
        ],
    ),
    ("cost-above-the-limit", &["6:26 a cost of 6 can never pass a limit of 5"]),
    (
        "descriptors-that-are-no-list",
        &["3:3 `descriptors` must be a list, not a map = begin each item with `- `"],
    ),
    (
        "domain-twice",
        &[
            "3:9 duplicate domain `auth`: first defined at domain-twice.yaml:1 = put all its rules into one document",
        ],
    ),
    ("duplicate-field", &["7:7 duplicate field `unit`: the first is on line 5 = remove one of them"]),
    (
        "duration-that-is-none",
        &[
            "5:14 `every` must be a duration, not `15 minutes` = write a duration such as 500ms, 90s, 15m, 1h30m, 7d or 2w, or day, week, month, quarter, year",
        ],
    ),
    ("empty-domain", &["1:9 the `domain` is empty"]),
    ("empty-key", &["3:10 the `key` is empty"]),
    ("empty", &["0:0 this file contains no rules"]),
    ("every-beside-unit", &["6:14 `every` cannot be combined with `unit` = remove one of them"]),
    ("field-in-the-wrong-map", &["7:7 a rate_limit has no field `shadow_mode` = it belongs in a descriptor"]),
    (
        "field-that-nobody-knows",
        &[
            "7:7 a rate_limit has no field `colour` = known fields: unit, unit_multiplier, requests_per_unit, unlimited, name, replaces, every, zone, anchor, algorithm, burst, in_flight, cost, on_failure, lease, tiers, ban, regions, candidate",
        ],
    ),
    ("flag-that-is-no-flag", &["4:18 `shadow_mode` must be true or false, not the string `perhaps`"]),
    (
        "in-flight",
        &[
            "3:50 `unit` cannot be combined with `in_flight`, which limits no rate = remove one of them",
            "3:74 `requests_per_unit` cannot be combined with `in_flight`, which limits no rate = remove one of them",
            "4:55 `algorithm` cannot be combined with `in_flight`, which limits no rate = remove one of them",
            "4:76 units of an in-flight limit cannot be leased, since each permit is held by its process: use it without `leased`",
            "5:40 `in_flight` is no algorithm of a rate = write `in_flight: 10` instead of `algorithm`, `unit` and `requests_per_unit`",
            "6:44 `fair` is not supported: processes that wait do not queue; remove it. Within one process, callers are admitted in order of arrival",
            "7:40 in_flight of 1000000000001: an in-flight limit must be 1 to 10^12 units",
            "8:40 a cost of 4 can never pass a limit of 3",
            "9:40 `in_flight` cannot be combined with `unlimited` = remove one of them",
            "10:78 a tier of this rule has `in_flight`, as its rate_limit = use the same fields in both",
            "10:111 a limit in flight has no `burst` = remove it",
            "10:121 the tier `all` needs `in_flight`",
            "11:89 a tier of this rule has `requests_per_unit`, as its rate_limit = use the same fields in both",
            "12:107 a fixed_window has no `burst`: the whole limit can be used at once = remove it, or add `algorithm: token_bucket`",
            "12:143 `burst` cannot be combined with `unlimited`",
        ],
    ),
    (
        "kubernetes-manifest",
        &["1:1 this is a manifest of Kubernetes, not a rule file: save the rules in its `data` as a file"],
    ),
    (
        "lease-of-a-leaky-bucket",
        &[
            "8:14 a leaky bucket cannot be leased, since each check has a place in its queue: use it without `leased`, or a token bucket",
        ],
    ),
    ("letters-that-are-not-ascii", &["5:25 there is no unit `minüte` = did you mean `minute`?"]),
    (
        "many-mistakes",
        &[
            "2:9 there is no charge `maybe` = expected one of all, each",
            "5:25 there is no unit `minutes` = did you mean `minute`?",
            "5:53 `requests_per_unit` must be at least 0, not -1",
            "7:9 a descriptor needs a `key`",
            "9:21 a rate_limit needs `requests_per_unit` = 0 denies all requests; `unlimited: true` admits all of them",
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
            "3:5 `stage` is not supported: tidegate has no filter stages: remove it",
            "4:5 `disable_key` is not supported: tidegate does not read Envoy's runtime: remove the entry from the file instead",
            "5:5 `limit` is not supported: define limits in `descriptors` only",
            "6:5 `hits_addend` is not supported: set the cost of a request with the layer's `cost` or the rule's `cost`",
            "7:5 `apply_on_stream_done` is not supported: use the layer's `charge` to charge by the response",
            "9:9 `source_cluster` is not supported: tidegate does not know Envoy's clusters: use generic_key",
            "10:9 `destination_cluster` is not supported: tidegate does not know Envoy's clusters: use generic_key",
            "11:9 `metadata` is not supported: tidegate does not read Envoy's metadata: use extension",
            "12:9 `dynamic_metadata` is not supported: tidegate does not read Envoy's metadata: use extension",
            "13:34 `typed_config` is not supported: tidegate does not load Envoy's extensions: the service provides values by name",
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
            "4:41 `:scheme` is not a valid header name = use an HTTP token, or one of :authority, :method, :path",
            "5:41 `:methd` is not a valid header name = did you mean `:method`?",
            "6:41 `x key` is not a valid header name = use an HTTP token, or one of :authority, :method, :path",
            "7:26 a request_headers needs a `descriptor_key`",
            "8:26 a request_headers needs a `header_name`",
            "9:22 `a/b` is not a valid header name = use an HTTP token, or one of :authority, :method, :path",
        ],
    ),
    (
        "mapping-matchers",
        &[
            "4:29 a header_value_match needs `headers`",
            "8:26 `exact_match` is not supported: Envoy has deprecated it: write `string_match: { exact: … }`",
            "9:26 `safe_regex_match` is not supported: tidegate has no regular expressions: use prefix, suffix or contains",
            "10:42 `safe_regex` is not supported: tidegate has no regular expressions: use prefix, suffix or contains",
            "11:60 `prefix` cannot be combined with `exact` in a string_match = remove one of them",
            "12:40 a string_match is incomplete = add one of exact, prefix, suffix, contains",
            "13:52 an empty `contains` matches every value = use `present_match`",
            "14:69 `present_match` cannot be combined with `string_match` = remove one of them",
            "15:15 a header to match needs a `name`",
        ],
    ),
    (
        "mapping-methods",
        &[
            "5:16 the list of `methods` is empty = remove it to apply to all methods",
            "6:16 `methods` must be a list, not the string `GET` = begin each item with `- `",
            "7:17 `get` is not an HTTP method = write a method in capitals, such as GET",
            "7:22 `` is not an HTTP method = write a method in capitals, such as GET",
            "7:32 duplicate method `POST` = remove one of them",
            "8:7 an entry of `rate_limits` has no field `method` = did you mean `methods`? `method` belongs in an action",
            "9:5 the list of `methods` is empty = remove it to apply to all methods",
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
        &["4:54 `v4_prefix_mask_len` must be at most 32", "4:78 `v6_prefix_mask_len` must be at most 128"],
    ),
    (
        "mapping-unknown-action",
        &[
            "4:9 an action has no field `remote_adress` = did you mean `remote_address`?",
            "5:9 an action is incomplete = write `remote_address: {}`",
            "6:9 an action is incomplete = add one of remote_address, masked_remote_address, request_headers, query_parameters, generic_key, header_value_match, query_parameter_value_match, method, path, path_template, extension",
            "8:17 `method` cannot be combined with `remote_address` in an action = remove one of them",
            "9:9 an action must be a map with the fields remote_address, masked_remote_address, request_headers, query_parameters, generic_key, header_value_match, query_parameter_value_match, method, path, path_template, extension, not the string `path`",
        ],
    ),
    (
        "tier-of-a-request",
        &[
            "2:41 `extension` cannot be combined with `header_name` in the tier of a request = remove one of them",
            "5:7 the tier of a request must be a map with the fields header_name, extension, not the string `pro`",
            "8:9 the tier of a request has no field `header` = known fields: header_name, extension",
            "11:22 the `header_name` is empty",
        ],
    ),
    ("metadata", &["4:15 `metadata` must be a map", "9:7 duplicate name in `metadata` = remove one of them"]),
    ("multiplier-of-zero", &["6:24 `unit_multiplier` must be at least 1"]),
    (
        "networks",
        &[
            "3:25 the list of `networks` is empty = add a network such as 10.0.0.0/8",
            "4:25 `networks` must be a list, not the string `10.0.0.0/8` = begin each item with `- `",
            "5:26 `localhost` is neither a network nor an address = write a network such as 10.0.0.0/8 or 2001:db8::/32, or an address",
            "5:37 `10.0.0.0/33` is neither a network nor an address = write a network such as 10.0.0.0/8 or 2001:db8::/32, or an address",
            "6:26 `10.0.0.1/8` has bits set after its prefix = did you mean `10.0.0.0/8`?",
            "7:35 `networks` cannot be combined with a `value` = remove one of them",
            "8:25 duplicate network `10.0.0.0/8` = remove one of them",
            "10:25 the network `10.1.0.0/16` of `g` is already defined at networks.yaml:9 = remove one of them",
            "11:15 a descriptor has no field `network` = did you mean `networks`?",
            "12:5 the list of `networks` is empty = add a network such as 10.0.0.0/8",
        ],
    ),
    ("negative-number", &["6:26 `requests_per_unit` must be at least 0, not -5"]),
    ("no-domain", &["1:1 a document needs a `domain`"]),
    ("no-key", &["3:5 a descriptor needs a `key`"]),
    (
        "no-requests-per-unit",
        &[
            "5:7 a rate_limit needs `requests_per_unit` = 0 denies all requests; `unlimited: true` admits all of them",
        ],
    ),
    (
        "no-unit",
        &[
            "5:7 a rate_limit needs a `unit` (or `every`) = a unit is one of second, minute, hour, day, week, month, year",
        ],
    ),
    ("no-yaml", &["2:14 invalid YAML: unclosed bracket '['"]),
    ("number-in-quotes", &["6:26 `requests_per_unit` must be a whole number, not the string `5`"]),
    (
        "number-too-large",
        &["6:26 `requests_per_unit` must be at most 2^48", "8:52 `requests_per_unit` must be at most 2^48"],
    ),
    (
        "quota-mode",
        &[
            "4:17 `quota_mode` needs `charge: each`: rules that admit are charged, even if another one denies = add `charge: each` to the document",
        ],
    ),
    (
        "quota-mode-in-shadow-mode",
        &[
            "5:17 `quota_mode` cannot be combined with `shadow_mode`, which denies nothing = remove one of them",
        ],
    ),
    (
        "rate-limit-beside-its-map",
        &[
            "4:5 a descriptor has no field `unit` = it belongs in a rate_limit",
            "5:5 a descriptor has no field `requests_per_unit` = it belongs in a rate_limit",
        ],
    ),
    ("rate-limit-that-is-empty", &["5:5 a descriptor has no field `unit` = it belongs in a rate_limit"]),
    (
        "rate-limits-in-a-descriptor",
        &[
            "4:5 a descriptor has no field `rate_limits` = did you mean `rate_limit`? `rate_limits` belongs in a document",
        ],
    ),
    ("replaces-itself", &["8:26 `slow` replaces itself"]),
    (
        "replaces-that-is-no-list",
        &["7:17 `replaces` must be a list, not the string `slow` = begin each item with `- `"],
    ),
    (
        "replaces-without-a-name",
        &["7:26 an entry of `replaces` has an empty `name`", "7:32 an entry of `replaces` needs a `name`"],
    ),
    (
        "same-key-twice",
        &[
            "5:10 duplicate descriptor: the key `user` without a value is already defined at same-key-twice.yaml:3 = merge both into one descriptor",
        ],
    ),
    (
        "same-value-twice",
        &[
            "7:12 duplicate descriptor: the key `user` with this value is already defined at same-value-twice.yaml:3 = merge both into one descriptor",
        ],
    ),
    (
        "same-wildcard-twice-below",
        &[
            "6:29 duplicate descriptor: the key `path` with this value is already defined at same-wildcard-twice-below.yaml:5 = merge both into one descriptor",
        ],
    ),
    (
        "share-threshold-without-wildcard",
        &[
            "5:22 `share_threshold` needs a `value` with `*`, or `networks` = remove it, or put a `*` into the `value`",
        ],
    ),
    ("tab", &["3:1 invalid YAML: a tab indents this line: use spaces"]),
    ("template", &["4:17 this file is a template: render it first, as `helm template` does"]),
    ("template-with-a-condition", &["2:1 this file is a template: render it first, as `helm template` does"]),
    ("tier-without-a-number", &["7:21 the tier `pro` needs `requests_per_unit`"]),
    (
        "unit-that-nobody-knows",
        &["5:13 there is no unit `fortnight` = expected one of second, minute, hour, day, week, month, year"],
    ),
    ("unknown-algorithm", &["7:18 there is no algorithm `token_buket` = did you mean `token_bucket`?"]),
    (
        "unknown-algorithm-gcra",
        &["4:66 there is no algorithm `gcra` = write `token_bucket`, which decides as GCRA does"],
    ),
    ("unknown-charge", &["2:9 there is no charge `both` = expected one of all, each"]),
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
            "5:7 a rate_limit needs `requests_per_unit` = 0 denies all requests; `unlimited: true` admits all of them",
            "6:7 a rate_limit has no field `request_per_unit` = did you mean `requests_per_unit`?",
        ],
    ),
    ("unknown-on-failure", &["7:19 there is no on_failure `opened` = did you mean `open`?"]),
    ("unknown-unit", &["5:13 there is no unit `minutes` = did you mean `minute`?"]),
    ("unlimited-with-a-unit", &["6:13 `unit` cannot be combined with `unlimited` = remove one of them"]),
    ("window-too-long", &["6:24 a window is at most 10 years long"]),
    ("yaml-colon-in-a-value", &["3:14 invalid YAML: a value that contains `: ` needs quotes"]),
    ("yaml-colon-without-a-space", &["1:7 invalid YAML: a space is missing after this colon"]),
    (
        "yaml-column-between",
        &[
            "6:6 invalid YAML: this line begins in a column in which nothing above it begins: align it with the lines of its map or list",
        ],
    ),
    (
        "yaml-column-of-an-item",
        &[
            "4:4 invalid YAML: this line begins in a column in which nothing above it begins: align it with the lines of its map or list",
        ],
    ),
    (
        "yaml-column-too-far",
        &["4:17 invalid YAML: this line begins too far to the right: align it with the lines of its map"],
    ),
    ("yaml-tab-after-a-value", &["5:1 invalid YAML: a tab indents this line: use spaces"]),
    (
        "yaml-value-that-begins-with-a-star",
        &["4:12 invalid YAML: no anchor has this name, and a value that begins with `*` needs quotes"],
    ),
    ("yaml-value-that-begins-with-an-at", &["4:12 invalid YAML: a value that begins with `@` needs quotes"]),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/rules/fixtures/mistakes")
}

fn describe(error: &ConfigError) -> String {
    let hint = error.suggestion().map(|hint| format!(" = {hint}")).unwrap_or_default();
    let message = error.message().replace(&format!("{}/", folder().display()), "");
    format!("{}:{} {message}{hint}", error.line(), error.column())
}

fn errors(name: &str) -> ConfigErrors {
    Rules::load(folder().join(format!("{name}.yaml"))).unwrap_err()
}

#[test]
fn each_error_is_reported_with_its_line_and_column() {
    for (name, expected) in EXPECTED {
        let errors: Vec<String> = errors(name).iter().map(describe).collect();
        assert_eq!(errors, *expected, "{name}");
    }
}

#[test]
fn every_fixture_has_expected_errors() {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let listed: BTreeSet<String> = EXPECTED.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, listed);
}

#[test]
fn error_shows_the_line_and_marks_the_word() {
    let text = errors("unknown-unit").to_string();
    let (_, text) = text.split_once("unknown-unit.yaml:").unwrap();
    assert_eq!(
        text,
        "5:13: there is no unit `minutes`\n  |\n5 |       unit: minutes\n  |             ^^^^^^^\n  |\n  = did you mean `minute`?"
    );
}

#[test]
fn errors_of_a_folder_are_reported_in_the_order_of_its_files() {
    let errors = Rules::load(folder()).unwrap_err();
    let files: Vec<&str> = errors.iter().map(ConfigError::file).collect();
    assert!(files.is_sorted());
    for (name, expected) in EXPECTED {
        let errors_of_file = errors.iter().filter(|error| error.file().ends_with(&format!("/{name}.yaml")));
        // Several of these files define the same domain, so a folder has additional errors.
        assert!(errors_of_file.count() >= expected.len(), "{name}");
    }
    let error = Error::from(errors);
    assert!(error.is_config());
    assert!(error.to_string().contains("did you mean `minute`?"));
}

#[test]
fn duplicate_domain_is_an_error_unless_domains_are_merged() {
    let user = "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }]";
    let group = user.replace("user", "group");
    let errors = Loader::new().parse([("a.yaml", user), ("b.yaml", &group)]).unwrap_err();
    assert_eq!(
        errors.iter().map(describe).collect::<Vec<_>>(),
        ["1:9 duplicate domain `d`: first defined at a.yaml:1 = put all its rules into one document"]
    );
    let merging = Loader::new().merge_domains(true);
    assert_eq!(merging.parse([("a.yaml", user), ("b.yaml", &group)]).unwrap().iter().count(), 2);
    let errors = merging.parse([("a.yaml", user), ("b.yaml", user)]).unwrap_err();
    assert_eq!(
        errors.iter().map(describe).collect::<Vec<_>>(),
        [
            "2:22 duplicate descriptor: the key `user` without a value is already defined at a.yaml:2 = merge both into one descriptor"
        ]
    );
}

#[test]
fn loader_sets_the_charge_of_documents_without_one() {
    let quota = "domain: d\ndescriptors: [{ key: k, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }]";
    let all = format!("charge: all\n{quota}");
    assert_eq!(
        Loader::new().parse([("a.yaml", quota)]).unwrap_err().total(),
        1,
        "quota mode needs `charge: each`"
    );
    let each = Loader::new().charge_each(true);
    assert_eq!(each.parse([("a.yaml", quota)]).unwrap().iter().count(), 1);
    assert_eq!(
        each.parse([("a.yaml", &*all)]).unwrap_err().total(),
        1,
        "a document's own `charge` has precedence"
    );
}

#[test]
fn wildcards_that_each_request_has_to_try_are_bounded() {
    let descriptors = |number: usize| -> String {
        let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
        (0..number).map(|at| format!("  - {{ key: k, value: 'a*{at}b', {limit} }}\n")).collect()
    };
    let text = |number| format!("domain: d\ndescriptors:\n{}", descriptors(number));
    assert_eq!(Rules::parse("a.yaml", &text(1_000)).unwrap().iter().count(), 1_000);
    let errors = Rules::parse("a.yaml", &text(1_001)).unwrap_err();
    assert_eq!(
        errors.iter().map(describe).collect::<Vec<_>>(),
        [
            "1003:12 the key `k` has more than 1000 values with a `*` before their end, and each request tries all of them = end the values with `*`, or match another key first"
        ]
    );
}

#[test]
fn long_line_is_shown_in_part() {
    let descriptors: String = (0..1_000).map(|at| format!("{{ key: a{at} }}, ")).collect();
    let text = format!("domain: d\ndescriptors: [{descriptors}{{ key: b, kee: 1 }}]");
    let text = Rules::parse("a.yaml", &text).unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines[3].find('^').unwrap();
    assert_eq!(&lines[2][at..at + 3], "kee");
    assert!(lines[2].len() < 200);
}

#[test]
fn marker_is_below_its_word_after_a_tab_and_wide_characters() {
    let before = "descriptors: [{ key: \"日本\t\", ";
    let text = format!("domain: d\n{before}kee: 1 }}]");
    let text = Rules::parse("a.yaml", &text).unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("a.yaml:2:29: "), "{text}");
    assert!(lines[2].ends_with("\"日本    \", kee: 1 }]"), "{text}");
    // Two characters are 2 columns wide, and the tab is 4.
    let width = before.chars().count() + 2 + 3;
    assert_eq!(lines[3], format!("  | {}^^^", " ".repeat(width)), "{text}");
}

#[test]
fn control_characters_do_not_reach_the_text() {
    let assert_harmless = |text: &str| {
        let controls = |letter: char| letter.is_control() && letter != '\n';
        assert!(!text.contains(controls) && !text.contains('\u{202e}'), "{text:?}");
    };
    let rules = "domain: d\ndescriptors: [{ key: a, rate_limit: { unit: \"\\e]0;x\\a\\x9b2J\\n\\u202evalid\", requests_per_unit: 1 } }]";
    let error = Rules::parse("a\x1b\u{9b}\n.yaml", rules).unwrap_err();
    assert!(error.iter().next().unwrap().message().contains("\x1b]0;x\x07\u{9b}2J\n\u{202e}valid"));
    let text = error.to_string();
    assert_harmless(&text);
    // The position, a separator, the line, the marker, a separator and the hint.
    assert_eq!(text.lines().count(), 6, "{text:?}");

    for letter in ['\x1b', '\x07', '\r', '\x08', '\x7f', '\u{85}', '\u{9b}', '\u{2028}', '\u{202e}', '\0'] {
        let rules = format!("domain: d\ndescriptors: [{{ key: a, kee: 1 }}] # {letter}[2J");
        assert_harmless(&Rules::parse("a.yaml", &rules).unwrap_err().to_string());
    }
}

#[test]
fn hint_from_a_file_is_harmless() {
    let name = "\\e[2J\\x9b\\nslow";
    let limit = |fields: &str| format!("rate_limit: {{ unit: day, requests_per_unit: 1, {fields} }}");
    let rules = format!(
        "domain: d\ndescriptors:\n  - {{ key: a, {} }}\n  - {{ key: b, {} }}",
        limit(&format!("name: \"{name}\"")),
        limit(&format!("name: b, replaces: [{{ name: \"{name}x\" }}]")),
    );
    let text = Rules::parse("a.yaml", &rules).unwrap().warnings()[0].to_string();
    assert!(text.ends_with("  = did you mean `␛[2J\u{fffd}␊slow`?"), "{text:?}");
    assert_eq!(text.lines().count(), 6, "{text:?}");
}
