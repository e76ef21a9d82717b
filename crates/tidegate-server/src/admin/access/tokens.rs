//! The tokens of the admin port, from a file.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;
use std::{fmt, fs, io};

use sha2::{Digest, Sha256};

use super::identity::Role;
use super::sessions::is_same_secret;

/// The maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The maximum number of tokens. Each attempt compares all of them.
const MAX_TOKENS: usize = 1_000;
const MAX_NAME_BYTES: usize = 64;
/// The minimum length of a token that is written in the file itself.
const MIN_TOKEN_BYTES: usize = 16;
/// Words of examples, and the first guesses of an attacker. The empty word is the digest of a mistaken pipe.
const WELL_KNOWN_WORDS: [&str; 8] = ["", "admin", "changeme", "password", "secret", "test", "test2", "token"];

/// The tokens with which clients log in to the admin port, each with a name and a [`Role`].
///
/// The file has one token a line: its name, its role, and either its SHA-256 or itself. Empty lines and lines that
/// begin with `#` are ignored. A name has up to 64 of the characters `A-Z a-z 0-9 . _ @ -`.
///
/// ```text
/// # name role token
/// ada operator sha256:<64 hexadecimal digits>
/// prometheus viewer sha256:<64 hexadecimal digits>
/// ```
///
/// ```no_run
/// use tidegate_server::AdminTokens;
///
/// let tokens = AdminTokens::load("/etc/tidegate/admin-tokens")?;
/// # let _ = tokens; Ok::<(), tidegate_server::AdminTokensError>(())
/// ```
#[derive(Clone)]
pub struct AdminTokens(Vec<TokenEntry>);

#[derive(Clone)]
struct TokenEntry {
    name: String,
    role: Role,
    sha256: [u8; 32],
}

/// The reason why a file of tokens cannot be used. Its text contains no token.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AdminTokensError {
    /// The file cannot be read.
    #[error("cannot read the file of admin tokens: {0}")]
    Read(#[from] io::Error),
    /// The file has another format.
    #[error("admin tokens, line {line}: {message}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what is expected.
        message: String,
    },
    /// The file as a whole cannot be used.
    #[error("admin tokens: {0}")]
    Unusable(String),
}

/// The message: it is what the standard library prints of an error that `main` returns.
impl fmt::Debug for AdminTokensError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl AdminTokens {
    /// Reads the file. Blocks: call it before the server starts.
    ///
    /// # Errors
    ///
    /// - If the file cannot be read, has another format, or has no token.
    /// - On Unix, if users outside the file's group can read it, or its group can change it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AdminTokensError> {
        // Opening a FIFO would wait for its writer. Another process can replace the file before it is opened, so that the
        // opened file is checked again.
        ensure_regular(&fs::metadata(&path)?)?;
        let file = File::open(path)?;
        ensure_private(&file.metadata()?)?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(AdminTokensError::Unusable("the file has more than 1 MiB".to_owned()));
        }
        Self::parse(&text)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    ///
    /// If the text has another format, no token, more than 1,000 tokens, a name twice or a token twice, or if a token is
    /// a well-known word such as `test`.
    pub fn parse(text: &str) -> Result<Self, AdminTokensError> {
        let mut entries: Vec<TokenEntry> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |message: String| AdminTokensError::Line { line: index + 1, message };
            let entry = TokenEntry::parse(line).map_err(at)?;
            if entries.iter().any(|other| other.name == entry.name) {
                return Err(at(format!("the name `{}` is used twice", entry.name)));
            }
            if let Some(other) = entries.iter().find(|other| other.sha256 == entry.sha256) {
                return Err(at(format!("`{}` has the token of `{}`", entry.name, other.name)));
            }
            entries.push(entry);
        }
        match entries.len() {
            0 => Err(AdminTokensError::Unusable(
                "the file has no token: write `NAME ROLE sha256:…`".to_owned(),
            )),
            1..=MAX_TOKENS => Ok(Self(entries)),
            _ => Err(AdminTokensError::Unusable(format!("the file has more than {MAX_TOKENS} tokens"))),
        }
    }

    /// Returns the name and role of a token. Compares it with all tokens, in a time that does not depend on which of
    /// them is similar.
    pub(super) fn find(&self, token: &[u8]) -> Option<(String, Role)> {
        let sha256: [u8; 32] = Sha256::digest(token).into();
        self.0.iter().fold(None, |found, entry| match is_same_secret(&entry.sha256, &sha256) {
            true => Some((entry.name.clone(), entry.role)),
            false => found,
        })
    }
}

impl std::fmt::Debug for AdminTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| (&entry.name, entry.role))).finish()
    }
}

impl TokenEntry {
    fn parse(line: &str) -> Result<Self, String> {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [name, role, token] = parts[..] else {
            return Err(format!("{} words instead of three: write `NAME ROLE sha256:…`", parts.len()));
        };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        if name.len() > MAX_NAME_BYTES || !name.bytes().all(is_allowed) {
            return Err("a name has up to 64 letters, digits and `._@-`".to_owned());
        }
        let role = Role::of_name(role).ok_or("the role is neither `viewer` nor `operator`")?;
        let sha256: [u8; 32] = match token.split_once(':') {
            Some(("sha256", hex)) => parse_sha256(hex).ok_or("a SHA-256 has 64 hexadecimal digits")?,
            Some(("token", token)) if token.len() < MIN_TOKEN_BYTES => {
                return Err(format!(
                    "the token is shorter than {MIN_TOKEN_BYTES} characters, and can be guessed"
                ));
            }
            Some(("token", token)) => Sha256::digest(token).into(),
            _ => return Err("the third word is neither `sha256:…` nor `token:…`".to_owned()),
        };
        if WELL_KNOWN_WORDS.iter().any(|word| <[u8; 32]>::from(Sha256::digest(word)) == sha256) {
            return Err(
                "this is the SHA-256 of a well-known word: create a token with `openssl rand -hex 32`"
                    .to_owned(),
            );
        }
        Ok(Self { name: name.to_owned(), role, sha256 })
    }
}

fn parse_sha256(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn ensure_regular(metadata: &Metadata) -> Result<(), AdminTokensError> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(AdminTokensError::Unusable("the path is not that of a regular file".to_owned())),
    }
}

/// Fails if users outside the file's group can read it, or its group can change it. The group may read it, because
/// Kubernetes gives mounted secrets to a group.
fn ensure_private(metadata: &Metadata) -> Result<(), AdminTokensError> {
    ensure_regular(metadata)?;
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        if mode & 0o027 != 0 {
            return Err(AdminTokensError::Unusable(format!(
                "the file has the mode {mode:o}, so that other users can read or change it: set 600, or 640 for its group"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::access::hex;

    const TOKEN: &str = "a-token-of-this-test";

    fn digest(token: &str) -> String {
        hex(&Sha256::digest(token))
    }

    #[test]
    fn token_is_found_by_its_sha256_or_by_its_text() {
        let sha256 = digest(TOKEN);
        let text =
            format!("\n# people\n ada operator sha256:{sha256}\r\nbob\tviewer token:0123456789abcdef\n");
        let tokens = AdminTokens::parse(&text).unwrap();
        assert_eq!(tokens.find(TOKEN.as_bytes()), Some(("ada".to_owned(), Role::Operator)));
        assert_eq!(tokens.find(b"0123456789abcdef"), Some(("bob".to_owned(), Role::Viewer)));
        for wrong in ["", "a-token-of-this-test ", "A-token-of-this-test", &sha256, "0123456789abcdeg", "\0"]
        {
            assert_eq!(tokens.find(wrong.as_bytes()), None, "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn wrong_file_is_an_error_with_its_line_and_without_its_token() {
        let sha256 = digest(TOKEN);
        let upper = sha256.to_uppercase();
        for (text, expected) in [
            ("", "no token"),
            ("# only a comment", "no token"),
            ("ada operator", "line 1: 2 words"),
            ("\nada operator token:0123456789abcdef more", "line 2: 4 words"),
            ("ada admin token:0123456789abcdef", "neither `viewer` nor `operator`"),
            ("ada viewer 0123456789abcdef", "neither `sha256:…` nor `token:…`"),
            ("ada viewer token:0123456789abcde", "shorter than 16"),
            ("ada viewer sha256:9f86", "64 hexadecimal"),
            ("<b> viewer token:0123456789abcdef", "up to 64 letters"),
            ("a viewer token:0123456789abcdef\na viewer token:0123456789abcdeg", "line 2: the name `a`"),
            (&format!("a viewer sha256:{sha256}\nb viewer sha256:{upper}"), "`b` has the token of `a`"),
            (&format!("{} viewer token:0123456789abcdef", "n".repeat(65)), "up to 64 letters"),
        ] {
            let error = AdminTokens::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("0123456789abcde"), "{error}");
        }
        let line = |index: usize| format!("n{index} viewer token:{index:016}\n");
        assert!(AdminTokens::parse(&(0..1_000).map(line).collect::<String>()).is_ok());
        assert!(AdminTokens::parse(&(0..1_001).map(line).collect::<String>()).is_err());
    }

    #[test]
    fn token_that_can_be_guessed_or_is_of_an_example_is_rejected() {
        for word in ["test", "test2", "admin", "password", "token", "secret", "changeme", ""] {
            let text = format!("ada operator sha256:{}", digest(word).to_uppercase());
            let error = AdminTokens::parse(&text).unwrap_err().to_string();
            assert!(
                error.ends_with(
                    "line 1: this is the SHA-256 of a well-known word: create a token with `openssl rand -hex 32`"
                ),
                "{word}: {error}"
            );
        }
    }
}
