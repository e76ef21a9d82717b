//! Keys of counts, made from several texts.

/// Joins the parts so that different lists make different keys: escapes the separator `|`.
pub(super) fn joined<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut key = Vec::new();
    for part in parts {
        for &byte in part {
            if matches!(byte, b'|' | b'\\') {
                key.push(b'\\');
            }
            key.push(byte);
        }
        key.push(b'|');
    }
    key.pop();
    key
}
