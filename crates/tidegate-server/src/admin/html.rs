//! The few pages of the admin port that do not need the console: the login, and errors.

/// The style sheet of these pages.
pub(super) const STYLE: &str = include_str!("../../assets/plain.css");

/// Returns a page. `title` and `content` are HTML.
pub(crate) fn page(title: &str, content: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} - tidegate</title>\n<link rel=\"stylesheet\" href=\"/assets/plain.css\">\n\
         <main>\n<h1>{title}</h1>\n{content}\n</main>\n</html>\n"
    )
}

/// Returns a text in which no character has a meaning in HTML, also within quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn escaped_text_has_no_markup() {
        assert_eq!(escape("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
    }
}
