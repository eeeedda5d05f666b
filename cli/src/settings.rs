//! Which setting counts: a flag, then the environment, then the configuration
//! file, then the default.
//!
//! There is no second list of settings. The path of a flag (`bench produce
//! --linger-ms`) is its key in the file (`linger_ms` in `[bench.produce]`) and
//! its variable (`QUIRE_BENCH_PRODUCE_LINGER_MS`); what every command takes is
//! at the top (`broker`, `QUIRE_BROKER`). The file's values become the parser's
//! defaults, so that one parser judges all three. A key or variable that names
//! no flag, or whose value the flag would not take, ends the program, also when
//! it belongs to a command that is not being run.
//!
//! A flag that accepts a loss (`--yes`) is a flag only.

#[cfg(test)]
mod reference;

use std::any::TypeId;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _};
use toml::{Table, Value};

use crate::cli::Cli;
use crate::failure::Failure;

/// Flags that are not settings: what they accept must be said each time.
const FLAG_ONLY: [&str; 4] = ["help", "version", "yes", "accept_loss"];
const PREFIX: &str = "QUIRE_";
const FILE_VARIABLE: &str = "QUIRE_CONFIG";
const FILE_ID: &str = "config_file";
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Parses the command line over environment and file.
///
/// # Errors
/// Usage errors, which name the flag, variable or key; and what the parser
/// prints on demand (help, version).
pub(crate) fn load(
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
) -> Result<ArgMatches, Failure> {
    let command = command();
    let command = match file(&command, &arguments, &environment) {
        None => command,
        Some(path) => with_file(command, &path)?,
    };
    let command = with_environment(command, &environment)?;
    command.try_get_matches_from(arguments).map_err(Failure::from_clap)
}

/// The whole command line, with variables, as help and completion show it.
pub(crate) fn command() -> Command {
    with_numbers(with_variables(with_file_flag(Cli::command(), &[]), &[]))
}

/// Takes `-5` as a value, so that the flag's own parser says what is wrong with it.
fn with_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes)
    });
    command.mut_subcommands(with_numbers)
}

/// `--config FILE` before a command or after it, but where `--config` already
/// is a topic's setting.
fn with_file_flag(command: Command, path: &[&str]) -> Command {
    let flag = Arg::new(FILE_ID)
        .long("config")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .env(FILE_VARIABLE)
        .hide_env_values(true)
        .help("A TOML file with settings");
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let taken = command.get_arguments().any(|arg| arg.get_long() == Some("config"));
    let command = if taken || (!path.is_empty() && !names.is_empty()) { command } else { command.arg(flag) };
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(&name, |sub| with_file_flag(sub, &[path, &[name.as_str()]].concat()))
    })
}

/// Gives each setting its variable.
fn with_variables(command: Command, path: &[&str]) -> Command {
    let ids: Vec<String> =
        command.get_arguments().filter(|arg| is_setting(arg)).map(|arg| arg.get_id().to_string()).collect();
    let command = ids.into_iter().fold(command, |command, id| {
        let variable = variable(path, &id);
        command.mut_arg(id, |arg| arg.env(variable).hide_env_values(true))
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(&name, |sub| with_variables(sub, &[path, &[name.as_str()]].concat()))
    })
}

fn is_setting(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    !arg.is_positional() && id != FILE_ID && !FLAG_ONLY.contains(&id)
}

fn variable(path: &[&str], id: &str) -> String {
    let mut name = String::from(PREFIX);
    for part in path {
        name.push_str(&part.to_uppercase().replace('-', "_"));
        name.push('_');
    }
    name + &id.to_uppercase()
}

/// Makes the variables' values defaults. Every `QUIRE_*` variable must be a
/// setting and have a value that it takes.
fn with_environment(mut command: Command, environment: &[(OsString, OsString)]) -> Result<Command, Failure> {
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if name == FILE_VARIABLE || is_service_link(name) {
            continue;
        }
        let Some(arg) = find_variable(&command, name) else {
            return Err(Failure::usage(format!("unknown environment variable {name}"))
                .remedy("unset it, or take one of those that docs/configuration.md lists"));
        };
        let text = value.to_str().ok_or_else(|| Failure::usage(format!("{name} is not UTF-8")))?;
        let texts = match arg.get_value_delimiter() {
            Some(delimiter) => text.split(delimiter).map(str::to_owned).collect(),
            None => vec![text.to_owned()],
        };
        for text in &texts {
            check_value(arg, text)
                .map_err(|why| Failure::usage(format!("environment variable {name}: {why}")))?;
        }
        command = with_default(command, name, &texts);
    }
    Ok(command)
}

/// Gives the flag that has this variable these defaults.
fn with_default(command: Command, variable: &str, texts: &[String]) -> Command {
    let own = command.get_arguments().find(|arg| has_variable(arg, variable));
    match own.map(|arg| arg.get_id().clone()) {
        Some(id) => command.mut_arg(id, |arg| arg.required(false).default_values(texts.iter().cloned())),
        None => command.mut_subcommands(|sub| with_default(sub, variable, texts)),
    }
}

fn has_variable(arg: &Arg, variable: &str) -> bool {
    arg.get_id() != FILE_ID && arg.get_env().is_some_and(|name| name == variable)
}

fn find_variable<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command
        .get_arguments()
        .find(|arg| has_variable(arg, name))
        .or_else(|| command.get_subcommands().find_map(|sub| find_variable(sub, name)))
}

/// What Kubernetes sets for a service whose name begins with `quire`
/// (`QUIRE_BROKER_SERVICE_HOST`, `QUIRE_PORT_9650_TCP_ADDR`): nobody wrote it,
/// so that it is no mistake.
fn is_service_link(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

/// The file that flags or environment name. A command line that is wrong is
/// reported by the parse that follows.
fn file(command: &Command, arguments: &[OsString], environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let without_variables = command.clone().ignore_errors(true);
    let matches = without_variables.try_get_matches_from(arguments).ok();
    let mut level = matches.as_ref();
    let mut path = None;
    while let Some(matches) = level {
        if let Ok(Some(found)) = matches.try_get_one::<PathBuf>(FILE_ID) {
            path = Some(found.clone());
        }
        level = matches.subcommand().map(|(_, matches)| matches);
    }
    path.or_else(|| {
        environment.iter().find(|(name, _)| name == FILE_VARIABLE).map(|(_, value)| PathBuf::from(value))
    })
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        let why = format!("it has more than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

fn with_file(command: Command, path: &Path) -> Result<Command, Failure> {
    let shown = path.display();
    let text = read(path).map_err(|error| {
        Failure::usage(format!("cannot read the configuration file {shown}: {error}"))
            .remedy("give the path of a TOML file to --config or QUIRE_CONFIG")
    })?;
    let table: Table = text.parse().map_err(|error| {
        Failure::usage(format!("{shown} is not TOML: {error}"))
            .remedy("correct it; docs/configuration.md shows how it looks")
    })?;
    let mut wrong = None;
    let command = with_table(command, &table, "", &mut wrong);
    match wrong {
        None => Ok(command),
        Some(why) => Err(Failure::usage(format!("{shown}: {why}"))
            .remedy("correct or remove it; docs/configuration.md lists every key")),
    }
}

/// Makes the table's values defaults; the first that is wrong goes to `wrong`.
fn with_table(mut command: Command, table: &Table, path: &str, wrong: &mut Option<String>) -> Command {
    for (key, value) in table {
        if wrong.is_some() {
            break;
        }
        let full = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let sub = command.get_subcommands().find(|sub| sub.get_name().replace('-', "_") == *key);
        if let Some(name) = sub.map(|sub| sub.get_name().to_owned()) {
            match value {
                Value::Table(inner) => {
                    command = command.mut_subcommand(name, |sub| with_table(sub, inner, &full, wrong));
                }
                _ => *wrong = Some(format!("key '{full}' is a table")),
            }
            continue;
        }
        let arg = command.get_arguments().find(|arg| is_setting(arg) && arg.get_id() == key.as_str());
        match arg.map(|arg| texts(arg, value)) {
            None => *wrong = Some(format!("unknown key '{full}'")),
            Some(Err(why)) => *wrong = Some(format!("key '{full}': {why}")),
            Some(Ok(texts)) => {
                command = command.mut_arg(key, |arg| arg.required(false).default_values(texts));
            }
        }
    }
    command
}

/// The value as the parser takes it, if it is of the right type.
fn texts(arg: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let many = arg.get_value_delimiter().is_some() || matches!(arg.get_action(), ArgAction::Append);
    let values = match value {
        Value::Array(values) if many => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        let text = text(kind(arg), value)?;
        check_value(arg, &text)?;
        texts.push(text);
    }
    Ok(texts)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flag,
    Integer,
    /// An integer, or text with a unit.
    Size,
    Text,
}

fn kind(arg: &Arg) -> Kind {
    let id = arg.get_value_parser().type_id();
    let integers = [TypeId::of::<u8>(), TypeId::of::<u32>(), TypeId::of::<u64>()];
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        Kind::Flag
    } else if integers.iter().any(|integer| id == *integer) {
        Kind::Integer
    } else if id == TypeId::of::<crate::value::ByteSize>() {
        Kind::Size
    } else {
        Kind::Text
    }
}

fn text(kind: Kind, value: &Value) -> Result<String, String> {
    match (kind, value) {
        (Kind::Flag, Value::Boolean(flag)) => Ok(flag.to_string()),
        (Kind::Integer | Kind::Size, Value::Integer(number)) => Ok(number.to_string()),
        (Kind::Size | Kind::Text, Value::String(text)) => Ok(text.clone()),
        (kind, value) => {
            let wanted = match kind {
                Kind::Flag => "true or false",
                Kind::Integer => "an integer",
                Kind::Size => "a number of bytes, such as 65536 or \"64KiB\"",
                Kind::Text => "a string",
            };
            Err(format!("{wanted} is wanted, not {} {}", article(value.type_str()), value.type_str()))
        }
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'i', 'o']) { "an" } else { "a" }
}

/// Lets the flag's own parser judge the value.
fn check_value(arg: &Arg, text: &str) -> Result<(), String> {
    let parser: ValueParser = arg.get_value_parser().clone();
    let mut probe = Arg::new("value").value_parser(parser).allow_hyphen_values(true);
    if let Some(delimiter) = arg.get_value_delimiter() {
        probe = probe.value_delimiter(delimiter);
    }
    let command = Command::new("quire").no_binary_name(true).disable_help_flag(true).arg(probe);
    let Err(error) = command.try_get_matches_from([text]) else { return Ok(()) };
    let rendered = error.render().to_string();
    let first = rendered.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let plain = first.strip_prefix("error: ").unwrap_or(&first).replace(" for '[value]'", "");
    Err(plain.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use clap::FromArgMatches as _;

    use super::*;
    use crate::cli::{self, OutputFormat};

    struct Case {
        file: Option<&'static str>,
        environment: &'static [(&'static str, &'static str)],
        arguments: &'static [&'static str],
    }

    fn parse(case: &Case) -> Result<Cli, String> {
        let mut environment: Vec<(OsString, OsString)> =
            case.environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        if let Some(text) = case.file {
            file.write_all(text.as_bytes()).unwrap();
            environment.push((FILE_VARIABLE.into(), file.path().into()));
        }
        let arguments = std::iter::once("quire").chain(case.arguments.iter().copied());
        load(arguments.map(OsString::from).collect(), environment)
            .and_then(|matches| Cli::from_arg_matches(&matches).map_err(Failure::from_clap))
            .map_err(|failure| match failure {
                Failure::Reported { cause, .. } => cause.to_string(),
                Failure::Clap(error) => error.to_string(),
                Failure::OutputClosed => String::new(),
            })
    }

    #[track_caller]
    fn standalone(case: &Case) -> (Cli, String) {
        let cli = parse(case).unwrap();
        let cli::Command::Standalone(standalone) = &cli.command else { panic!("{cli:?}") };
        let data = standalone.data.display().to_string();
        (cli, data)
    }

    #[track_caller]
    fn check_refused(case: &Case, expected: &[&str]) {
        let error = parse(case).unwrap_err();
        for text in expected {
            assert!(error.contains(text), "'{text}' is missing in: {error}");
        }
    }

    const FILE: &str = "broker = [\"a:1\", \"b:2\"]\noutput = \"json\"\n[standalone]\ndata = \"from-file\"\n\
                        [bench.produce]\nlinger_ms = 7\nbatch_bytes = \"64KiB\"\n[topic.create]\npartitions = 3\n";

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn defaults_count_last() {
        let (cli, data) = standalone(&Case { file: None, environment: &[], arguments: &["standalone"] });
        assert_eq!(data, "quire-data");
        assert_eq!(cli.common.broker, ["127.0.0.1:9650"]);
    }

    #[test]
    fn the_file_counts_over_defaults() {
        let case = Case { file: Some(FILE), environment: &[], arguments: &["standalone"] };
        let (cli, data) = standalone(&case);
        assert_eq!(data, "from-file");
        assert_eq!(cli.common.broker, ["a:1", "b:2"]);
        assert_eq!(cli.common.output, OutputFormat::Json);
        let cli = parse(&Case { arguments: &["topic", "create", "t"], ..case }).unwrap();
        assert!(
            matches!(cli.command, cli::Command::Topic(cli::Topic::Create(create)) if create.partitions == 3)
        );
        let case = Case { file: Some(FILE), environment: &[], arguments: &["bench", "produce", "t"] };
        let cli::Command::Bench(cli::Bench::Produce(bench)) = parse(&case).unwrap().command else { panic!() };
        assert_eq!(bench.load.batching.linger_ms, 7);
        assert_eq!(bench.load.batching.batch_bytes.bytes(), 65_536);
    }

    #[test]
    fn a_variable_counts_over_the_file_and_a_flag_over_both() {
        let environment = &[("QUIRE_STANDALONE_DATA", "from-variable"), ("QUIRE_BROKER", "c:3,d:4")];
        let (cli, data) = standalone(&Case { file: Some(FILE), environment, arguments: &["standalone"] });
        assert_eq!(data, "from-variable");
        assert_eq!(cli.common.broker, ["c:3", "d:4"]);
    }

    #[test]
    fn what_names_no_setting_is_refused_by_name() {
        let arguments = &["topic", "list"];
        check_refused(
            &Case { file: None, environment: &[("QUIRE_STANDALON_DATA", "x")], arguments },
            &["unknown environment variable QUIRE_STANDALON_DATA"],
        );
        check_refused(
            &Case { file: Some("brokers = []"), environment: &[], arguments },
            &["unknown key 'brokers'"],
        );
        check_refused(
            &Case { file: Some("[standalone]\ndta = \"x\""), environment: &[], arguments },
            &["unknown key 'standalone.dta'"],
        );
        check_refused(
            &Case { file: Some("[bench.produce]\nname = \"x\""), environment: &[], arguments },
            &["unknown key 'bench.produce.name'"],
        );
        check_refused(
            &Case { file: Some("[topic.delete]\nyes = true"), environment: &[], arguments },
            &["unknown key 'topic.delete.yes'"],
        );
    }

    #[test]
    fn what_has_the_wrong_type_is_refused_by_name() {
        let arguments = &["topic", "list"];
        for (file, expected) in [
            ("output = 1", "key 'output': a string is wanted, not an integer"),
            ("output = \"yaml\"", "key 'output': invalid value 'yaml'"),
            ("standalone = 1", "key 'standalone' is a table"),
            ("[topic.create]\npartitions = \"3\"", "key 'topic.create.partitions': an integer is wanted"),
            ("[topic.create]\npartitions = 0", "key 'topic.create.partitions': invalid value '0'"),
            ("[bench.produce]\nbatch_bytes = true", "key 'bench.produce.batch_bytes': a number of bytes"),
            ("[bench.produce]\nbatch_bytes = \"x\"", "key 'bench.produce.batch_bytes': invalid value 'x'"),
            ("[topic.create]\nsettings = [1]", "key 'topic.create.settings': a string is wanted"),
            ("x = ", "is not TOML"),
        ] {
            check_refused(&Case { file: Some(file), environment: &[], arguments }, &[expected]);
        }
        check_refused(
            &Case { file: None, environment: &[("QUIRE_BENCH_PRODUCE_LINGER_MS", "soon")], arguments },
            &["QUIRE_BENCH_PRODUCE_LINGER_MS", "invalid value 'soon'"],
        );
    }

    #[test]
    fn a_file_that_does_not_end_is_not_read_to_its_end() {
        let why = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn service_links_of_kubernetes_are_no_mistakes() {
        let environment = &[
            ("QUIRE_BROKER_SERVICE_HOST", "10.0.0.1"),
            ("QUIRE_BROKER_SERVICE_PORT_GRPC", "9650"),
            ("QUIRE_BROKER_PORT", "tcp://10.0.0.1:9650"),
            ("QUIRE_BROKER_PORT_9650_TCP_ADDR", "10.0.0.1"),
        ];
        standalone(&Case { file: None, environment, arguments: &["standalone"] });
    }

    #[test]
    fn config_is_a_file_but_for_topic_create() {
        let case = Case {
            file: None,
            environment: &[],
            arguments: &["topic", "create", "t", "--partitions", "1", "--config", "segment.bytes=1"],
        };
        let cli::Command::Topic(cli::Topic::Create(create)) = parse(&case).unwrap().command else { panic!() };
        assert_eq!(create.settings.len(), 1);
        for arguments in [
            &["--config", "/nowhere/quire.toml", "topic", "list"][..],
            &["topic", "list", "--config", "/nowhere/quire.toml"],
            &["standalone", "--config=/nowhere/quire.toml"],
        ] {
            let refused = Case { file: None, environment: &[], arguments };
            assert!(parse(&refused).unwrap_err().contains("/nowhere/quire.toml"), "{arguments:?}");
        }
    }
}
