//! The command line as clap has it: what every subcommand takes in the same way, and `-h`.

use std::any::TypeId;
use std::str::FromStr;

use clap::{Arg, Command, CommandFactory};
use tagore::gpu::DeviceKind;
use tagore::outofcore::{TaskId, TaskStage};
use tagore::{
    Collect, Device, ElementType, Fault, Filter, Format, Iterations, QueryKind, Start, Strategy, SynthKind,
};

use crate::Cli;
use crate::content::AnyFormat;
use crate::metric::MetricName;
use crate::number;
use crate::options::Devices;
use crate::walked::{BuiltOn, SearchWalk, Walk};

/// Examples, and the arguments that `-h` shows; `--help` shows all.
struct Short {
    /// The command.
    name: &'static str,
    examples: &'static [&'static str],
    /// Identifiers of arguments. A command without them shows all.
    shown: &'static [&'static str],
}

const SHORT: [Short; 19] = [
    Short {
        name: "tagore",
        examples: &[
            "tagore build base.npy",
            "tagore search base.npy --queries query.npy -o found.csv",
            "tagore demo",
        ],
        shown: &[],
    },
    Short {
        name: "tagore build",
        examples: &[
            "tagore build base.npy",
            "tagore build base.npy --kind cagra --metric cosine -o cosine.tagore --html cosine.html",
            "zcat base.fbin.gz | tagore build - --format fbin -o base.tagore",
        ],
        shown: &["positional", "output", "strategy", "metric", "device", "html"],
    },
    Short {
        name: "tagore update",
        examples: &[
            "tagore update base.tagore --base longer.npy",
            "tagore update base.tagore --base base.npy --remove gone.txt -o smaller.tagore",
        ],
        shown: &["index", "base", "remove", "replace", "output", "device"],
    },
    Short {
        name: "tagore merge",
        examples: &[
            "tagore merge a.tagore b.tagore --base all.npy -o all.tagore",
            "tagore merge a.tagore b.tagore --base a.npy b.npy --base-output all.npy -o all.tagore",
        ],
        shown: &["indexes", "base", "output", "base_output", "device"],
    },
    Short {
        name: "tagore live",
        examples: &[
            "tagore live insert products base.npy --ids ids.npy",
            "tagore live remove products 3 17",
            "tagore live search products --queries query.npy -o found.csv",
        ],
        shown: &[],
    },
    Short {
        name: "tagore live insert",
        examples: &[
            "tagore live insert products base.npy",
            "tagore live insert products more.npy --ids ids.txt",
            "tagore live insert products base.npy --index base.tagore",
        ],
        shown: &["folder", "base", "ids", "strategy", "metric", "index", "device"],
    },
    Short {
        name: "tagore live search",
        examples: &["tagore live search products --queries query.npy -k 10 -o found.csv"],
        shown: &[],
    },
    Short {
        name: "tagore knn",
        examples: &["tagore knn base.npy -o graph.bin", "tagore knn base.npy --knn 30 --verify 1000"],
        shown: &["positional", "output", "metric", "knn", "seed", "device", "verify"],
    },
    Short {
        name: "tagore search",
        examples: &[
            "tagore search base.npy --queries query.npy -o found.csv",
            "tagore search base.npy --index cosine.tagore --queries query.npy -k 100 --beam 400 -o found.npy",
        ],
        shown: &["positional", "index", "queries", "k", "beam", "output", "vectors", "device"],
    },
    Short {
        name: "tagore eval",
        examples: &[
            "tagore eval base.npy --queries query.npy",
            "tagore eval base.npy --index base.tagore --queries query.npy --groundtruth gt.bin --plot x.svg",
        ],
        shown: &[
            "positional",
            "index",
            "queries",
            "groundtruth",
            "filter",
            "k",
            "beams",
            "plot",
            "vectors",
            "device",
        ],
    },
    Short {
        name: "tagore groundtruth",
        examples: &["tagore groundtruth base.npy --queries query.npy -k 100 -o gt.bin"],
        shown: &["positional", "queries", "metric", "k", "filter", "output", "device"],
    },
    Short {
        name: "tagore synth",
        examples: &[
            "tagore synth -o base.fbin --n 100000 --dim 64",
            "tagore synth -o query.fbin --n 100000 --dim 64 --queries 1000",
        ],
        shown: &["output", "n", "dim", "element", "seed", "kind", "queries"],
    },
    Short {
        name: "tagore convert",
        examples: &[
            "tagore convert base.fvecs base.npy",
            "tagore convert base.tagore base.hnswlib --base base.npy --layers",
        ],
        shown: &["file", "output", "from", "to", "base", "layers"],
    },
    Short {
        name: "tagore inspect",
        examples: &[
            "tagore inspect base.tagore",
            "tagore inspect base.tagore --base base.npy --html base.html",
        ],
        shown: &["file", "base", "metric", "all", "html", "min_recall"],
    },
    Short {
        name: "tagore plan",
        examples: &[
            "tagore plan base.npy",
            "tagore plan --n 1G --dim 96 --type u8 --kind vamana --device-kind a100 --host-memory 48G",
        ],
        shown: &[
            "positional",
            "n",
            "dim",
            "element",
            "strategy",
            "host_memory",
            "device",
            "device_kind",
            "details",
        ],
    },
    Short {
        name: "tagore task",
        examples: &[
            "tagore task plan base.fbin -o base.tagore --dir /shared/tasks --host-memory 16G",
            "tagore task run --dir /shared/tasks --all",
            "tagore task status --dir /shared/tasks",
        ],
        shown: &[],
    },
    Short {
        name: "tagore bench",
        examples: &[
            "tagore bench prune base.npy --kinds nssg,cagra --queries query.npy --groundtruth gt.bin",
        ],
        shown: &[],
    },
    Short { name: "tagore completions", examples: &["source <(tagore completions bash)"], shown: &[] },
    Short { name: "tagore man", examples: &["tagore man man/man1"], shown: &[] },
];

/// Examples come before the usage.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// The command line interface.
pub(crate) fn command() -> Command {
    same_everywhere(Cli::command(), "")
}

/// The examples of the command of a name, such as `tagore build`.
pub(crate) fn examples(name: &str) -> &'static [&'static str] {
    SHORT.iter().find(|short| short.name == name).map_or(&[], |short| short.examples)
}

/// The command below `above`, such as `tagore bench`, with what is the same everywhere. A negative
/// number is a value, not a flag: its error is that of the flag before it.
fn same_everywhere(command: Command, above: &str) -> Command {
    let name = format!("{above} {}", command.get_name());
    let command = command.allow_negative_numbers(true).mut_args(lenient);
    let command = command.mut_subcommands(|below| same_everywhere(below, &name));
    let short = SHORT.iter().find(|short| name == format!(" {}", short.name));
    let Some(Short { examples, shown, .. }) = short else { return command };
    let lines: Vec<String> = examples.iter().map(|line| format!("  {line}")).collect();
    let command = command.before_help(format!("Examples:\n{}", lines.join("\n"))).help_template(TEMPLATE);
    if shown.is_empty() {
        return command;
    }
    command.mut_args(|arg| {
        let is_hidden = !shown.contains(&arg.get_id().as_str());
        arg.hide_short_help(is_hidden)
    })
}

/// The argument with the parser of its type: numbers with units, and names in any case.
fn lenient(arg: Arg) -> Arg {
    fn any_case<T: FromStr>(text: &str) -> Result<T, T::Err> {
        text.parse().or_else(|error| text.to_lowercase().parse().map_err(|_| error))
    }
    let parsed = arg.get_value_parser().type_id();
    macro_rules! parse {
        ($($parser:path: $($type:ident)+;)+) => {
            $($(if parsed == TypeId::of::<$type>() {
                return arg.value_parser($parser as fn(&str) -> Result<$type, _>);
            })+)+
        };
    }
    parse! {
        number::whole: usize u64;
        number::real: f32;
        any_case: AnyFormat BuiltOn Collect Device Devices DeviceKind ElementType Fault Filter Format Iterations
            MetricName QueryKind SearchWalk Start Strategy SynthKind TaskId TaskStage Walk;
    }
    arg
}
