//! `tagore completions` and `tagore man`: what shells and `man` read.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use tagore::Error;

use crate::command::command;
use crate::error::Result;
use crate::output::{Output, STANDARD};

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Shell: bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

impl Completions {
    /// Prints the completions of the whole command.
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command(), "tagore", &mut script);
        output.write(Path::new(STANDARD), &String::from_utf8_lossy(&script))
    }
}

#[derive(clap::Args)]
pub(crate) struct Man {
    /// Folder of the pages, made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Man {
    /// Writes a page for the command and for each of its subcommands.
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let failed = |source| Error::Io { path: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let mut command = command().disable_help_subcommand(true);
        command.build();
        let pages = self.pages(&command, output)?;
        output.say(format_args!("{pages} pages -> {}", self.folder.display()));
        Ok(())
    }

    /// Writes the page of `command` and the pages below it; returns their number.
    fn pages(&self, command: &Command, output: &Output) -> Result<usize> {
        let page = clap_mangen::Man::new(command.clone());
        let path = self.folder.join(page.get_filename());
        let mut roff = Vec::new();
        page.render(&mut roff).map_err(|source| Error::Io { path: path.clone(), source })?;
        output.write(&path, &String::from_utf8_lossy(&roff))?;
        let below = command.get_subcommands().filter(|command| !command.is_hide_set());
        below.map(|command| self.pages(command, output)).try_fold(1, |sum, pages| Ok(sum + pages?))
    }
}
