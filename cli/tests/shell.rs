//! Completions load in their shells, and man reads the pages without a warning.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::{Session, names};

/// Runs a program, or prints that it is missing.
fn run(program: &str, arguments: &[&str], s: &Session) -> Option<Output> {
    let mut command = Command::new(program);
    // Nothing but the script of the test is read.
    command.args(arguments).current_dir(s.folder.path()).env("HOME", s.folder.path()).stdin(Stdio::null());
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            // The test harness hides the output of `eprintln!` in passing tests.
            let _ = writeln!(std::io::stderr(), "skipped: {program}: {error}");
            None
        }
    }
}

#[test]
fn completions_load_and_know_the_subcommands() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = s.run(&format!("completions {shell}"));
        assert_eq!((script.status.code(), script.stderr.len()), (Some(0), 0));
        assert!(String::from_utf8_lossy(&script.stdout).contains("groundtruth"), "{shell}");
        std::fs::write(s.path(shell), script.stdout).unwrap();
    }
    let bash =
        "source ./bash; COMP_WORDS=(tagore bu); COMP_CWORD=1; _tagore tagore bu tagore; echo $COMPREPLY";
    let zsh = "autoload -U compinit; compinit -u -D; source ./zsh; whence -w _tagore";
    let fish = "source fish; complete -C 'tagore bu'";
    for (shell, arguments, expected) in [
        ("bash", ["--norc", "-c", bash], "build"),
        ("zsh", ["-f", "-c", zsh], "_tagore: function"),
        ("fish", ["--no-config", "-c", fish], "build\tBuild a graph index of a data set"),
    ] {
        let Some(output) = run(shell, &arguments, &s) else { continue };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((stderr.as_ref(), output.status.code()), ("", Some(0)), "{shell}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected, "{shell}");
    }
}

#[test]
fn man_reads_every_page_without_a_warning() {
    let s = Session { folder: tempfile::tempdir().unwrap() };
    s.succeeds("man pages");
    let pages = names(&s.path("pages"));
    assert!(pages.contains(&"tagore.1".to_owned()) && pages.contains(&"tagore-bench-prune.1".to_owned()));
    assert!(!pages.contains(&"tagore-man.1".to_owned()), "the page of a hidden subcommand");
    for page in &pages {
        let path = format!("pages/{page}");
        let Some(output) = run("man", &["--warnings", "-E", "UTF-8", "-l", &path], &s) else { return };
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{page}");
        assert!(output.status.success() && !output.stdout.is_empty(), "{page}");
    }
}
