//! `rules document`: the limits of a domain, for the users of an API.

use serde_json::{Map, Value, json};
use tidegate::admin::did_you_mean;
use tidegate_rules::{Limit, Rule, Rules};

use crate::args::DocumentFormat;
use crate::failure::Failure;
use crate::output::Output;

/// A limit of a rule: of all requests, or of those of a tier.
struct Documented<'r> {
    rule: &'r Rule,
    tier: Option<&'r str>,
    limit: Limit,
}

/// Prints the limits that can deny requests. Those in shadow mode and the candidates are not for clients.
pub(crate) fn print(rules: &Rules, domain: &str, format: DocumentFormat, out: Output) -> Result<(), Failure> {
    if !rules.has_domain(domain) {
        let near = did_you_mean(domain, rules.iter().map(Rule::domain));
        return Err(Failure::usage(format!("the rules have no domain `{domain}`{near}")));
    }
    let of_domain = rules.iter().filter(|rule| rule.domain() == domain && !rule.is_shadow());
    let limits: Vec<Documented<'_>> = of_domain.flat_map(Documented::all).collect();
    let text = match format {
        DocumentFormat::Markdown => markdown(domain, &limits),
        DocumentFormat::Openapi => {
            let limits: Vec<Value> = limits.iter().map(Documented::json).collect();
            format!("{:#}\n", json!({ "x-rate-limits": limits }))
        }
    };
    out.verbatim(text.as_bytes())
}

fn markdown(domain: &str, limits: &[Documented<'_>]) -> String {
    let rows: String = limits.iter().map(Documented::row).collect();
    format!(
        "# Limits of {}\n\nA request over a limit gets `429 Too Many Requests`, with the seconds to wait in \
         `Retry-After`.\n\n| requests with | tier | limit | name in responses |\n| --- | --- | --- | --- |\n{rows}",
        code(domain)
    )
}

impl<'r> Documented<'r> {
    fn all(rule: &'r Rule) -> impl Iterator<Item = Self> {
        let of_tier = |(tier, limit)| Documented { rule, tier: Some(tier), limit };
        let all = Documented { rule, tier: None, limit: rule.limit(None) };
        std::iter::once(all).chain(rule.tiers().map(of_tier))
    }

    /// Returns the limit in words.
    fn words(&self) -> String {
        let ban = self.rule.ban().filter(|_| self.limit.quota().is_some()).map(|ban| {
            let (lasts, within) = (crate::units::human(ban.lasts()), crate::units::human(ban.within()));
            format!("; {} denials within {within} ban for {lasts}", ban.denials())
        });
        let cost = Some(self.rule.cost()).filter(|cost| *cost > 1);
        let cost = cost.map(|cost| format!("; a request costs {cost}")).unwrap_or_default();
        match self.limit {
            Limit::Quota(quota) => format!("{quota}{cost}{}", ban.unwrap_or_default()),
            Limit::Unlimited => "unlimited".to_owned(),
            Limit::DenyAll(_) => "none is admitted".to_owned(),
        }
    }

    fn row(&self) -> String {
        let entry = |(key, value): (&str, Option<String>)| match value {
            Some(value) => code(&format!("{key}={value}")),
            None => format!("each {}", code(key)),
        };
        let requests = self.rule.entries().map(entry).collect::<Vec<_>>().join(", ");
        let tier = match self.tier {
            Some(tier) => code(tier),
            None => if self.rule.has_tiers() { "all others" } else { "" }.to_owned(),
        };
        let name = self.rule.neutral_name(self.limit.quota());
        let name = if self.limit == Limit::Unlimited { String::new() } else { code(&name) };
        format!("| {requests} | {tier} | {} | {name} |\n", self.words())
    }

    fn json(&self) -> Value {
        let quota = self.limit.quota();
        let window = quota.filter(|quota| !quota.is_in_flight()).map(|quota| quota.window().as_secs_f64());
        let entry = |(key, value): (&str, Option<String>)| (key.to_owned(), value.into());
        let requests: Map<String, Value> = self.rule.entries().map(entry).collect();
        json!({
            "requests": requests,
            "tier": self.tier,
            "name": &*self.rule.neutral_name(quota),
            "limit": match self.limit {
                Limit::Quota(quota) => Some(quota.limit()),
                Limit::Unlimited => None,
                Limit::DenyAll(_) => Some(0),
            },
            "windowSeconds": window,
            "cost": self.rule.cost(),
            "description": self.words(),
        })
    }
}

/// Returns a text as code in a cell of a table. Rules can contain any text.
fn code(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text: String = text.chars().map(plain).collect();
    format!("`{}`", text.replace('`', "'").replace('|', "\\|"))
}
