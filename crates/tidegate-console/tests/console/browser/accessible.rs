//! Keyboard, screen readers, contrast.

use serde_json::{Value, json};

use super::super::html::fixture::{Console, OPERATOR, RULES};
use super::driver::{Browser, Scheme};
use super::layout::{PAGES, fill};

/// Mistakes that a screen reader or the keyboard meets.
const STRUCTURE: &str = r#"
    const wrong = [];
    const all = (selector) => [...document.querySelectorAll(selector)];
    if (all('h1').length !== 1) wrong.push('h1: ' + all('h1').length);
    if (all('main').length !== 1) wrong.push('main: ' + all('main').length);
    if (!document.documentElement.lang) wrong.push('no language');
    if (document.querySelector('header') && !document.querySelector('nav[aria-label]')) wrong.push('no navigation');
    if (document.querySelector('a').getAttribute('href') !== '#main') wrong.push('no link to the content');
    for (const field of all('input:not([type=hidden]), select, textarea'))
        if (!field.labels.length) wrong.push('no label: ' + field.outerHTML);
    for (const table of all('table'))
        if (!table.querySelector('thead th[scope=col]')) wrong.push('no header: ' + table.outerHTML.slice(0, 100));
    for (const picture of all('svg'))
        if (!picture.closest('[aria-hidden=true]') && !picture.getAttribute('aria-label')) wrong.push('no text: ' + picture.outerHTML.slice(0, 100));
    for (const link of all('a[href], button'))
        if (!(link.textContent.trim() || link.getAttribute('aria-label'))) wrong.push('no name: ' + link.outerHTML);
    for (const element of all('[aria-labelledby], [aria-describedby]'))
        for (const id of (element.getAttribute('aria-labelledby') || element.getAttribute('aria-describedby')).split(' '))
            if (!document.getElementById(id)) wrong.push('no element ' + id);
    const ids = all('[id]').map((element) => element.id);
    for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) wrong.push('twice: ' + id);
    for (const element of all('[tabindex]'))
        if (element.tabIndex > 0) wrong.push('order: ' + element.outerHTML.slice(0, 100));
    return wrong;"#;

/// Texts with a contrast below 4.5 to the color behind them.
const CONTRAST: &str = r#"
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 1;
    const context = canvas.getContext('2d', { willReadFrequently: true });
    const parse = (color) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = color;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
    const light = (rgb) => {
        const [r, g, b] = rgb.map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        if (!element) return parse(getComputedStyle(document.body).backgroundColor).slice(0, 3);
        const own = parse(getComputedStyle(element).backgroundColor);
        return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
    };
    const low = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.textContent.trim() || !element.checkVisibility() || element.closest('.visually-hidden, .skip, script, option, datalist, noscript')) continue;
        const back = behind(element);
        const front = over(parse(getComputedStyle(element).color), back);
        const [high, small] = [light(front), light(back)].sort((a, b) => b - a);
        const ratio = (high + 0.05) / (small + 0.05);
        if (ratio < 4.5) low.push(ratio.toFixed(2) + ' ' + node.textContent.trim().slice(0, 60));
    }
    return [...new Set(low)];"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_have_labels_headers_landmarks_and_contrast() {
    let console = Console::start(RULES).await;
    fill(&console).await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("3 gates deny requests").await;
    for path in PAGES {
        browser.open(&console, path).await;
        assert_eq!(browser.eval(STRUCTURE).await, json!([]), "{path}");
        for scheme in [Scheme::Light, Scheme::Dark] {
            browser.prefer(scheme).await;
            browser.open(&console, path).await;
            assert_eq!(browser.eval(CONTRAST).await, json!([]), "{path}, {}", scheme.as_str());
        }
    }
    browser.close().await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyboard_reaches_the_content_the_navigation_and_the_tables() {
    let console = Console::start(RULES).await;
    fill(&console).await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("3 gates deny requests").await;
    browser.open(&console, "/gates").await;
    let mut reached = Vec::new();
    for _ in 0..16 {
        browser.tab().await;
        let name = browser.eval("const it = document.activeElement; return (it.innerText || it.name || '').split('\\n')[0] + '|' + (it.getAttribute('aria-label') || '')").await;
        reached.push(name.as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(reached[0], "Skip to the content|");
    for name in ["Overview|", "Health", "Log out|", "q|", "Search|", "|Gates"] {
        assert!(reached.iter().any(|found| found.contains(name)), "{name}: {reached:?}");
    }
    assert_ne!(
        browser.eval("return getComputedStyle(document.activeElement).outlineStyle").await,
        Value::from("none")
    );
    browser.close().await;
    console.stop().await;
}
