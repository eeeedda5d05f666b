//! `docs/configuration.md` lists every setting: checked here, and written anew
//! with `UPDATE_EXPECT=1`.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command};

use super::{command, is_setting};

const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";

#[test]
fn the_reference_lists_every_setting() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("the begin of the list");
    let (found, tail) = rest.split_once(END).expect("the end of the list");
    let expected = render();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{expected}{END}{tail}")).unwrap();
    } else {
        assert!(found == expected, "run this test with UPDATE_EXPECT=1: it should be\n{expected}");
    }
}

fn render() -> String {
    let mut text = String::new();
    section(&command(), &[], &mut text);
    text
}

fn section(command: &Command, path: &[&str], text: &mut String) {
    let settings: Vec<&Arg> = command.get_arguments().filter(|arg| is_setting(arg)).collect();
    if !settings.is_empty() {
        let title = match path {
            [] => "Every command: top level of the file".to_owned(),
            path => format!("`quire {}`: `[{}]`", path.join(" "), path.join(".").replace('-', "_")),
        };
        let _ = write!(text, "\n### {title}\n\n| key | default | variable | meaning |\n|---|---|---|---|\n");
        for arg in settings {
            let _ = writeln!(text, "{}", row(arg));
        }
    }
    for sub in command.get_subcommands() {
        section(sub, &[path, &[sub.get_name()]].concat(), text);
    }
}

fn row(arg: &Arg) -> String {
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = if defaults.is_empty() { String::new() } else { format!("`{}`", defaults.join(",")) };
    let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
    let values: Vec<_> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    let values = if values.is_empty() || arg.get_action().takes_values().eq(&false) {
        String::new()
    } else {
        format!(" ({})", values.join(", "))
    };
    format!("| `{}` | {default} | `{variable}` | {help}{values} |", arg.get_id())
}
