//! `rules validate`, `rules explain`, `rules document` and `rules schema`.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidegate_rules::{ConfigError, Descriptor, Explanation, Limit, Loader, Rule, Rules as Loaded, schema};

use crate::args::{RuleFiles, Rules};
use crate::failure::Failure;
use crate::output::{Output, Text, Tone, warn};
use crate::units::human;
use crate::{rule_document, serve};

/// Runs a `rules` command. Returns whether the rules are valid, or whether a rule matches each descriptor.
pub(crate) fn run(rules: &Rules, out: Output) -> Result<bool, Failure> {
    match rules {
        Rules::Validate { files } => {
            let (loader, path) = read_from(files, out)?;
            match loader.load(&path) {
                Err(errors) if out.json => {
                    let kept: Vec<Value> = errors.iter().map(error_json).collect();
                    let more = errors.total() - kept.len();
                    out.print(&json!({ "valid": false, "errors": kept, "more": more, "warnings": [] }), &[])?;
                    Ok(false)
                }
                Err(errors) => Err(Failure::ConfigErrors(errors)),
                Ok(rules) => {
                    let count = rules.iter().count();
                    let (path, plural) = (path.display(), if count == 1 { "" } else { "s" });
                    let line = vec![
                        Text(Tone::Good, "valid".to_owned()),
                        format!(": {count} rule{plural} in {path}").into(),
                    ];
                    let warnings: Vec<Value> = rules.warnings().iter().map(error_json).collect();
                    if !out.json {
                        let warnings = rules.warnings().iter();
                        warnings.for_each(|warning| warn(false, &format!("warning: {warning}\n")));
                    }
                    let json = json!({ "valid": true, "rules": count, "errors": [], "more": 0, "warnings": warnings });
                    out.print(&json, &[line])?;
                    Ok(true)
                }
            }
        }
        Rules::Explain { files, request, http } => {
            let (loader, path) = read_from(files, out)?;
            let rules = loader.load(path).map_err(Failure::ConfigErrors)?;
            if http.request.is_some() {
                let (parts, descriptors) = (http.parts()?, http.descriptors(request.domain())?);
                return match descriptors.read(&rules, &parts) {
                    Some(descriptors) => explain(&rules, request.domain(), &descriptors, out),
                    None => Err(Failure::usage("the file's rate_limits need the client's address: add --ip")),
                };
            }
            if request.descriptor.is_empty() {
                return Err(Failure::usage(
                    "specify a request: --domain auth --descriptor auth_type=login,user=ada, or --request \
                     'GET /login'",
                ));
            }
            let entries = request.entries()?;
            explain(&rules, request.domain(), &request.descriptors(&entries), out)
        }
        Rules::Document { files, domain, format } => {
            let (loader, path) = read_from(files, out)?;
            let rules = loader.load(path).map_err(Failure::ConfigErrors)?;
            rule_document::print(&rules, domain, *format, out)?;
            Ok(true)
        }
        Rules::Schema => {
            out.verbatim((schema() + "\n").as_bytes())?;
            Ok(true)
        }
    }
}

/// Returns how the files are read, and their path.
fn read_from(files: &RuleFiles, out: Output) -> Result<(Loader, PathBuf), Failure> {
    let (loader, default) = if files.from_env { serve::loader_from_env(out)? } else { Default::default() };
    Ok((loader, files.path.clone().unwrap_or(default)))
}

/// Explains each descriptor. Returns whether a rule matches every descriptor.
fn explain(
    rules: &Loaded,
    domain: &str,
    descriptors: &[Descriptor<'_>],
    out: Output,
) -> Result<bool, Failure> {
    let explained: Vec<_> = descriptors
        .iter()
        .map(|descriptor| (descriptor.to_string(), rules.explain(domain, descriptor)))
        .collect();
    let mut text: Vec<Vec<Text>> =
        explained.iter().flat_map(|(descriptor, explained)| lines(descriptor, explained)).collect();
    if descriptors.is_empty() {
        text.push(vec!["the request has no descriptor: it is allowed".into()]);
    }
    let json: Vec<Value> =
        explained.iter().map(|(descriptor, explained)| explanation_json(descriptor, explained)).collect();
    out.print(&json!({ "domain": domain, "descriptors": json }), &text)?;
    Ok(!explained.is_empty() && explained.iter().all(|(_, explained)| explained.rule().is_some()))
}

fn lines(descriptor: &str, explained: &Explanation<'_>) -> Vec<Vec<Text>> {
    let mut lines = vec![vec![descriptor.into()]];
    lines.extend(
        explained
            .matched()
            .iter()
            .map(|entry| vec![Text(Tone::Faint, "  ".to_owned()), entry.to_string().into()]),
    );
    lines.push(match (explained.rule(), explained.why_not()) {
        (Some(rule), _) => {
            let limit = explained.limit().map(|limit| limit_text(rule, limit)).unwrap_or_default();
            vec![Text(Tone::Good, "  rule ".to_owned()), format!("{}: {limit}", rule.path()).into()]
        }
        (None, why_not) => {
            vec![
                Text(Tone::Warn, "  no rule".to_owned()),
                format!(": {}", why_not.unwrap_or_default()).into(),
            ]
        }
    });
    if let Some(rule) = explained.rule() {
        let stored = Text(Tone::Faint, format!(" (in redis {})", rule.gate_name()));
        lines.push(vec![Text(Tone::Faint, "  gate ".to_owned()), rule.readable_name().into(), stored]);
        if let Some(candidate) = rule.candidate() {
            let text = format!("{candidate}, gate {} (denies nothing)", rule.candidate_gate_name());
            lines.push(vec![Text(Tone::Faint, "  candidate ".to_owned()), text.into()]);
        }
        if let Some(ban) = rule.ban() {
            let note = match explained.limit() {
                _ if rule.is_shadow() => " (counts nothing in shadow mode)",
                Some(Limit::Quota(_)) => "",
                _ => " (counts nothing of this tier)",
            };
            let (lasts, within) = (human(ban.lasts()), human(ban.within()));
            let text = format!("for {lasts} after {} denials within {within}{note}", ban.denials());
            lines.push(vec![Text(Tone::Faint, "  ban ".to_owned()), text.into()]);
        }
    }
    lines
}

/// Returns the limit of a rule in words, with its mode.
pub(crate) fn limit_text(rule: &Rule, limit: Limit) -> String {
    let limit = match limit {
        Limit::Quota(quota) => quota.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::DenyAll(_) => "denies every request".to_owned(),
    };
    match () {
        () if rule.is_shadow() => limit + ", shadow mode (denies nothing)",
        () if rule.is_quota() => limit + ", quota mode (denies if all quotas deny)",
        () => limit,
    }
}

fn explanation_json(descriptor: &str, explained: &Explanation<'_>) -> Value {
    let matched = explained.matched().iter().map(|entry| {
        let (file, line) = entry.origin();
        json!({
            "entry": entry.entry(),
            "matched_by": entry.by(),
            "file": file,
            "line": line,
            "passed_over": entry.passed_over(),
        })
    });
    let rule = explained.rule().map(|rule| {
        let ((file, line), limit) = (rule.origin(), explained.limit());
        json!({
            "path": rule.path(),
            "gate": rule.gate_name(),
            "quota": if let Some(Limit::Quota(quota)) = limit { Some(quota.to_string()) } else { None },
            "unlimited": limit == Some(Limit::Unlimited),
            "shadow": rule.is_shadow(),
            "quota_mode": rule.is_quota(),
            "candidate": rule.candidate().map(|candidate| candidate.to_string()),
            "ban": rule.ban().map(|ban| json!({
                "after": ban.denials(),
                "within_us": ban.within().as_micros() as u64,
                "for_us": ban.lasts().as_micros() as u64,
            })),
            "metadata": rule.metadata(),
            "file": file,
            "line": line,
        })
    });
    json!({
        "descriptor": descriptor,
        "matched": matched.collect::<Vec<_>>(),
        "rule": rule,
        "why_not": explained.why_not(),
    })
}

fn error_json(error: &ConfigError) -> Value {
    json!({
        "file": error.file(),
        "line": error.line(),
        "column": error.column(),
        "message": error.message(),
        "suggestion": error.suggestion(),
    })
}
