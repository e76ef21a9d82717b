//! Cuts texts of errors, which can quote the request.

/// The maximum number of characters of a text.
const MAX_CHARS: usize = 1_000;

pub(crate) fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}
