//! The frame that all pages share: title, navigation, the operator's name.

use std::sync::LazyLock;

/// A page of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Overview,
    Gates,
    Keys,
    Overrides,
    Rules,
    Explain,
    Health,
}

/// The frame of a page.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) tab: Option<Tab>,
    pub(super) namespace: String,
    /// Whether this process counts in its own memory.
    pub(super) is_in_memory: bool,
    /// The number of entries of the runbook that fire.
    pub(super) firing: usize,
    /// `None` before the login.
    pub(super) who: Option<Who>,
}

/// The person who is logged in.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) name: String,
    pub(super) role: &'static str,
    /// The secret of each form. `None` for a client without a session, which has no forms.
    pub(super) csrf: Option<String>,
    /// Whether there is a session to end.
    pub(super) has_session: bool,
    pub(super) is_operator: bool,
}

impl Tab {
    pub(super) const ALL: [Self; 7] =
        [Self::Overview, Self::Gates, Self::Keys, Self::Overrides, Self::Rules, Self::Explain, Self::Health];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Gates => "Gates",
            Self::Keys => "Keys",
            Self::Overrides => "Overrides",
            Self::Rules => "Rules",
            Self::Explain => "Explain",
            Self::Health => "Health",
        }
    }

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Gates => "/gates",
            Self::Keys => "/keys",
            Self::Overrides => "/overrides",
            Self::Rules => "/rules",
            Self::Explain => "/explain",
            Self::Health => "/health",
        }
    }
}

impl Frame {
    /// Returns whether the page is this one of the navigation, or below it.
    pub(super) fn is_at(&self, tab: &Tab) -> bool {
        self.tab.as_ref() == Some(tab)
    }

    /// Returns the number to show beside an entry of the navigation.
    pub(super) fn count_of(&self, tab: &Tab) -> usize {
        if *tab == Tab::Health { self.firing } else { 0 }
    }

    /// Returns the hidden field's value for forms; empty if there can be none.
    pub(super) fn csrf(&self) -> &str {
        self.who.as_ref().and_then(|who| who.csrf.as_deref()).unwrap_or_default()
    }

    pub(super) fn is_operator(&self) -> bool {
        self.who.as_ref().is_some_and(|who| who.is_operator && who.csrf.is_some())
    }

    /// Returns the URL of the style sheet. It changes with the content, so browsers keep it.
    pub(super) fn style_url() -> &'static str {
        static URL: LazyLock<String> = LazyLock::new(|| versioned("console.css", STYLE));
        &URL
    }

    /// Returns the URL of the script, as [`style_url`](Self::style_url).
    pub(super) fn script_url() -> &'static str {
        static URL: LazyLock<String> = LazyLock::new(|| versioned("console.js", SCRIPT));
        &URL
    }
}

pub(super) const STYLE: &str = include_str!("../../assets/console.css");
pub(super) const SCRIPT: &str = include_str!("../../assets/console.js");
pub(super) const ICON: &str = include_str!("../../assets/icon.svg");

/// Returns a URL with a hash (FNV-1a) of the content.
fn versioned(name: &str, content: &str) -> String {
    let hash = content.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("/assets/{name}?v={hash:016x}")
}
