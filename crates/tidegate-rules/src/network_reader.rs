//! Reads the `networks` of a descriptor.

use ipnet::{IpNet, Ipv6Net};

use super::config_error::SourceSpan;
use super::networks::{parse, public_ipv4_inside};
use super::reader::{Fields, Reader, quoted};
use super::rule::Pattern;
use super::tree::Level;
use super::yaml::YamlNode;

/// The maximum number of networks of one key on one level.
const MAX_NETWORKS: usize = 10_000;
/// The prefix length of an IPv6 client's `remote_address`, unless the service sets another.
const CLIENT_PREFIX: u8 = 64;

/// The field `networks` of a descriptor.
pub(super) enum NetworksField {
    Absent,
    Invalid,
    /// At least one, each new on its level.
    Of(Vec<IpNet>),
}

/// Reads the networks of a descriptor with this key. `level` has the earlier descriptors beside it.
pub(super) fn read(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    map: &YamlNode,
    key: &str,
    level: &Level,
) -> NetworksField {
    let errors_before = reader.errors.total();
    let Some(node) = fields.get("networks") else {
        if !fields.is_null("networks") {
            return NetworksField::Absent;
        }
        // Without the field, the descriptor would match every value.
        empty(reader, map);
        return NetworksField::Invalid;
    };
    if fields.get("value").is_some() {
        let message = "`networks` cannot be combined with a `value`";
        reader.error(node.span(), message).hint("remove one of them");
    }
    let nodes = reader.list("networks", Some(node));
    if nodes.is_empty() && reader.errors.total() == errors_before {
        empty(reader, node);
    }
    let networks: Vec<IpNet> = nodes.iter().filter_map(|node| network(reader, key, node)).collect();
    ensure_new(reader, node, key, &networks, level);
    match reader.errors.total() == errors_before {
        true => NetworksField::Of(networks),
        false => NetworksField::Invalid,
    }
}

/// Warns of a network that is written as a `value`, which is matched as text.
pub(super) fn warn_if_value(reader: &mut Reader<'_>, key: &str, value: &str, span: SourceSpan) {
    let Some(network) = parse(value).filter(|_| value.contains('/')) else { return };
    // The values of these keys can be networks themselves, or any label.
    let is_text = match network {
        IpNet::V4(_) => matches!(key, "masked_remote_address" | "generic_key"),
        IpNet::V6(_) => matches!(key, "masked_remote_address" | "remote_address" | "generic_key"),
    };
    if key == "masked_remote_address" && network != network.trunc() {
        let message = format!(
            "the value `{value}` has bits set after its prefix, so no client's network is equal to it"
        );
        reader.warning(span, message, format!("did you mean `{}`?", network.trunc()));
    } else if !is_text {
        let message = format!("the value `{value}` is matched as text, so no address matches it");
        reader.warning(span, message, format!("did you mean `networks: [{}]`?", network.trunc()));
    }
}

fn empty(reader: &mut Reader<'_>, node: &YamlNode) {
    reader.error(node.span(), "the list of `networks` is empty").hint("add a network such as 10.0.0.0/8");
}

fn network(reader: &mut Reader<'_>, key: &str, node: &YamlNode) -> Option<IpNet> {
    let text = reader.text("a network", node)?;
    let Some(network) = parse(text) else {
        let message = format!("`{}` is neither a network nor an address", quoted(text));
        let hint = "write a network such as 10.0.0.0/8 or 2001:db8::/32, or an address";
        reader.error(node.span(), message).hint(hint);
        return None;
    };
    if network != network.trunc() {
        let message = format!("`{network}` has bits set after its prefix");
        reader.error(node.span(), message).hint(format!("did you mean `{}`?", network.trunc()));
        return None;
    }
    if let IpNet::V6(network) = network {
        warn_if_without_clients(reader, key, node, network);
    }
    Some(network)
}

/// Warns of a network that contains no client, because of the form of clients' addresses.
fn warn_if_without_clients(reader: &mut Reader<'_>, key: &str, node: &YamlNode, network: Ipv6Net) {
    let is_address = key == "remote_address";
    if !is_address && key != "masked_remote_address" {
        return;
    }
    if let Some(ipv4) = public_ipv4_inside(network) {
        let message = format!(
            "`{network}` contains no public client: the IPv4 address inside of a 6to4 or NAT64 address is the client's"
        );
        let hint = match ipv4.prefix_len() {
            0 => "write IPv4 networks: 203.0.113.0/24 instead of 2002:cb00:7100::/40, for example".to_owned(),
            _ => format!("write `{ipv4}`"),
        };
        reader.warning(node.span(), message, hint);
    } else if is_address && network.prefix_len() > CLIENT_PREFIX {
        let message = format!("`{network}` contains no client whose address is its /{CLIENT_PREFIX}");
        let hint = "write the /64, unless the service sets a longer `ClientIp::ipv6_prefix`";
        reader.warning(node.span(), message, hint);
    }
}

/// Reports networks that occur twice on a level, and too many of one key.
fn ensure_new(reader: &mut Reader<'_>, node: &YamlNode, key: &str, networks: &[IpNet], level: &Level) {
    let mut sorted = networks.to_vec();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = format!("duplicate network `{}`", pair[0]);
        reader.error(node.span(), message).hint("remove one of them");
    }
    let earlier = |network| Some((network, level.get(key, &Pattern::Network(network))?));
    if let Some((network, first)) = networks.iter().copied().find_map(earlier) {
        let (file, line) = (&first.file, first.line);
        let message = format!("the network `{network}` of `{key}` is already defined at {file}:{line}");
        reader.error(node.span(), message).hint("remove one of them");
    }
    if level.networks(key) + networks.len() > MAX_NETWORKS {
        let message = format!("the key `{key}` has more than {MAX_NETWORKS} networks");
        reader.error(node.span(), message).hint("write larger networks");
    }
}
