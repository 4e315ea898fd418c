//! The command line's words.

mod migrate;
mod network;
mod small;

pub use migrate::{Disk, IfStuck, Migrate};
pub use network::{Net, Network, way_out};
pub use small::{Checkpoint, Copy, Doctor, Logs, One, Ps, Some, memory};

use crate::commands::{
    autoscale::Autoscale,
    bench::Bench,
    compose::{Down, Up},
    console::Console,
    egress::Egress,
    evacuate::Evacuate,
    events::Events,
    exec::{self, Exec},
    friendly::Friendly,
    images::Image,
    independence::Independent,
    lifetime::{IdleAfter, Keepalive, Life, Rename, Update},
    link::Link,
    node::Node,
    port_forward::PortForward,
    publish::{Closed, Ports},
    sched::Sched,
    sessions::Sessions,
    share::Share,
    substrate::Substrate,
    ticket::Ticket,
    token::Token,
    top::Top,
    vms::Patience,
    volume::{Disks, Volume},
    wait::Wait,
};
use crate::completion::Shell;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use forkyard_api_client::{Place, Trust};
use forkyard_types::{ByteCount, NodeName, VmName};
use std::path::PathBuf;

/// Path of the run folder, unless told.
pub const RUN_DIR: &str = "/run/forkyard";

/// Fork running virtual machines.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "A first fork:\n  forkyard run tiny --name p\n  forkyard fork p --count 8\n  forkyard exec p-3 -- hostname\n  forkyard rm --all"
)]
pub struct Args {
    /// Format of answers.
    #[arg(short, long, global = true, value_enum, default_value = "text")]
    pub output: Format,
    /// Folder of the daemon's sockets and of what lives only while it runs.
    #[arg(
        long,
        global = true,
        env = "FORKYARD_RUN_DIR",
        default_value = RUN_DIR
    )]
    pub run_dir: PathBuf,
    /// A daemon elsewhere: https://HOST:PORT, with the token in
    /// FORKYARD_TOKEN; or unix:///PATH/api.sock. None is started there.
    #[arg(long, global = true, env = "FORKYARD_URL")]
    pub url: Option<Place>,
    /// Certificate that the daemon has to present: sha256:FINGERPRINT, or a
    /// file in PEM with it or with its authority's. Without, what this host
    /// trusts.
    #[arg(long, global = true, env = "FORKYARD_CA", value_name = "CERTIFICATE")]
    pub ca: Option<Trust>,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Format of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs: what the API answered.
    Json,
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a VM from an image.
    #[command(
        after_help = "Examples:\n  forkyard run tiny --name p --memory 512 --warm 16 --max-clones 64 --secret /etc/tls/key\n  forkyard run debian --net nat --rate 10mbit --publish 127.0.0.1:8080:80\n  forkyard run debian --name web --idle 10m --restart always\n  forkyard run debian --name mail --net bridge --ip 192.0.2.7"
    )]
    Run(Box<Run>),
    /// Fork a running VM into clones.
    #[command(after_help = "Example: forkyard fork p --count 8 -o json")]
    Fork(Fork),
    /// Keep a running VM's present instant on disk, to be forked later.
    #[command(
        after_help = "Example: forkyard checkpoint p --name warm, and later forkyard fork warm --count 8"
    )]
    Checkpoint(Checkpoint),
    /// Move a running VM to another host, where it goes on under its identity.
    ///
    /// Its memory is sent while it runs; it stands still for what is left in the end. Its name,
    /// addresses and programs go along, and commands that `exec` runs in it go on. If anything fails,
    /// it goes on here.
    #[command(
        after_help = "Examples:\n  forkyard migrate p --to b\n  forkyard migrate p --to b --max-gap 50 --deadline 60 --if-stuck stop -o json\n  forkyard migrate zk1 zk2 zk3 --to b --together"
    )]
    Migrate(Migrate),
    /// Move all VMs of a host to others: by priority, several at a time.
    ///
    /// First says what goes where, and what will not make it and why. A node takes nothing new from
    /// then on. What is left after an interruption moves when this is said again.
    #[command(
        after_help = "Examples:\n  forkyard evacuate --plan\n  forkyard evacuate b --deadline 10m --priority tier=db --priority tier=web\n  forkyard evacuate --to c,d -o json"
    )]
    Evacuate(Evacuate),
    /// Run a command in a VM, and exit as it does.
    ///
    /// Environment, working directory and user are those of the VM's container image unless set here. Ctrl-C and SIGTERM are sent to the command, a second one ends
    /// this program; so does SIGHUP, and SIGTERM if the VM does not answer within eight seconds. If that ends before the command, however it ends, all processes of the
    /// command get SIGHUP, and those left after two seconds SIGKILL. What the command started and
    /// left running when it ended goes on.
    ///
    /// Exit codes: the command's; 128 and the number of the signal that ended it; 124 it took
    /// longer than `--timeout`; 125 forkyard failed, or does not understand its options; 126 it cannot be run; 127 there is no such
    /// program.
    #[command(
        after_help = "Examples:\n  forkyard exec p-3 hostname\n  forkyard exec -it p-3 sh\n  tar c . | forkyard exec -i -w /srv p-3 tar x"
    )]
    Exec(Exec),
    /// Show what a guest says on its serial console, from its kernel's first words if it has booted.
    ///
    /// Nothing of a boot is shown of a clone, or of a VM that was woken from a kept boot, as is usual from
    /// an image's second `run` on: its console begins empty. `forkyard restart VM` boots it (not a clone), and
    /// all is shown; `forkyard exec VM -- dmesg` shows what its kernel has said before.
    #[command(after_help = "Example: forkyard logs p --follow")]
    Logs(Logs),
    /// Sit at a guest's serial console; Ctrl-] leaves.
    #[command(after_help = "Example: forkyard console p")]
    Console(Console),
    /// Reach TCP ports of a VM at ports of this machine, through the daemon.
    ///
    /// Works for servers that listen on the VM's loopback, without `--publish` and for clones, too.
    /// A connection on which the VM's server is not there is closed, and told on standard error.
    /// Runs until it is interrupted.
    #[command(
        after_help = "Examples:\n  forkyard port-forward p 8080\n  forkyard port-forward p-3 8080:80 0:5432 -o json"
    )]
    PortForward(PortForward),
    /// Keep servers that are clones of one VM behind an HAProxy: as many as their load takes.
    ///
    /// While the servers are saturated they are doubled by a fork, up to `--max`. When load has fallen, those that
    /// are too many get no new requests and are removed once they have answered all. A server whose checks fail gets
    /// none, and is replaced. Wants Debian's `haproxy`. Runs until it is interrupted; then it answers what it has
    /// been asked and removes the clones, not the VM. If it is killed, they are removed within a minute.
    #[command(
        after_help = "Examples:\n  forkyard autoscale web --listen 0.0.0.0:80 --port 8080 --max 8\n  forkyard autoscale web --listen 127.0.0.1:8080 --signal latency --target 300ms -o json"
    )]
    Autoscale(Autoscale),
    /// Start the VMs of a file together: each with a system of its own, on one network, where they
    /// find each other by name.
    ///
    /// Members start at once; the commands of those that wait for others begin once these are well. Ends
    /// when all are. Again, it makes what is missing. docs/compose.md says what is in the file.
    #[command(
        after_help = "Examples:\n  forkyard up lamp.toml\n  forkyard up lamp.toml --timeout 5m -o json"
    )]
    Up(Up),
    /// Remove the VMs of a file, or of a composition by its name.
    #[command(after_help = "Examples:\n  forkyard down lamp.toml\n  forkyard down lamp")]
    Down(Down),
    /// Show what the VMs of a family may reach, or say it anew while they run.
    ///
    /// Rules given here replace those before, in the words of `run`. Connections to what may be
    /// reached no more end; others go on. Of a family on several hosts, those of this VM's host are meant.
    #[command(
        after_help = "Examples:\n  forkyard egress p\n  forkyard egress p --allow 192.0.2.0/24:443 --allow 198.51.100.7\n  forkyard egress p --net nat --deny 203.0.113.0/24\n  forkyard egress p --net none"
    )]
    Egress(Egress),
    /// Have ports of the host lead to a VM that runs, clones included, or give it an address outside.
    #[command(
        after_help = "Examples:\n  forkyard publish p-3 8080:80\n  forkyard publish p 127.0.0.1:5432:5432 5353:53/udp -o json\n  forkyard publish p-3 203.0.113.7/routed"
    )]
    Publish(Ports),
    /// Close ports of the host that lead to a VM, or take an address from it. Connections that are open go on.
    #[command(
        after_help = "Examples:\n  forkyard unpublish p-3 8080 5353/udp\n  forkyard unpublish p-3 203.0.113.7"
    )]
    Unpublish(Closed),
    /// Copy files and folders between here and a VM.
    ///
    /// Sockets, FIFOs and devices in a folder are left out, and told; a file that is copied onto a device is written
    /// into it. Modes are kept, but for set-id bits. A link in a folder stays a link; one that is named in a VM is
    /// followed there, and one that is named here is copied as a link.
    #[command(
        after_help = "Examples:\n  forkyard cp input p:/root && forkyard cp p-3:/root/result .\n  forkyard cp p:/srv - | tar x\n  tar c src | forkyard cp - p:/srv"
    )]
    Cp(Copy),
    /// List the VMs, checkpoints among them.
    #[command(
        after_help = "Examples:\n  forkyard ps -o json\n  forkyard ps --label user=ada --state running\n  forkyard ps --state checkpoint"
    )]
    Ps(Ps),
    /// Commands that go on in a VM without a client: list, attach, kill.
    ///
    /// `exec --detach` starts them. The VM's agent keeps them and the last 128 KiB that each has
    /// written, whatever becomes of the daemon; clones have them, too.
    #[command(subcommand)]
    Sessions(Sessions),
    /// Say for how long from now on VMs are wanted.
    #[command(
        after_help = "Examples:\n  forkyard keepalive p --ttl 10m\n  forkyard keepalive p --ttl 8h --at-end pause\n  forkyard keepalive p --forever"
    )]
    Keepalive(Keepalive),
    /// Say what becomes of a VM that is not used for a time, from now on: scale to zero.
    ///
    /// Commands, sessions, terminals, copies and connections to its ports by the API are use, and so is
    /// what connections to its published ports bring, and more than a tenth of a processor taken by its guest. Once it is paused or stopped for that, the
    /// next use wakes it.
    #[command(
        after_help = "Examples:\n  forkyard idle p 10m\n  forkyard idle p 8h:checkpoint\n  forkyard idle p --never"
    )]
    Idle(IdleAfter),
    /// Say whether VMs are started again when they end by themselves, from now on.
    ///
    /// Starts in a row are counted anew. What a user stops stays down, whatever is said here.
    #[command(
        after_help = "Examples:\n  forkyard update --restart always p\n  forkyard update --restart no p q -o json"
    )]
    Update(Update),
    /// Give a VM or a checkpoint another name. Its guest's host name stays until it boots again.
    #[command(after_help = "Example: forkyard rename p base")]
    Rename(Rename),
    /// Have disks come to depend on no substrate or image, while their VMs run.
    #[command(after_help = "Example: forkyard independent web --wait")]
    Independent(Independent),
    /// Show a VM in full: its forks, where its bytes are.
    #[command(after_help = "Example: forkyard inspect p-3")]
    Inspect(One),
    /// Have VMs stand still, for as long as you like; they can be forked so.
    #[command(after_help = "Example: forkyard pause p, and later forkyard resume p")]
    Pause(Some),
    /// Let paused VMs go on.
    #[command(after_help = "Example: forkyard resume p, or forkyard resume --all")]
    Resume(Some),
    /// Boot VMs again that have stopped, from their own disks. Not clones.
    #[command(after_help = "Example: forkyard start p")]
    Start(Some),
    /// Power VMs off and boot them again from their own disks. Not clones.
    #[command(after_help = "Example: forkyard restart p")]
    Restart {
        /// Names or ids of the VMs.
        #[arg(required = true)]
        vms: Vec<String>,
    },
    /// Wait until a VM runs, is paused, has stopped or is removed.
    ///
    /// Exits with 1 if something else happens first: the VM stops, or is removed. One that is stopped already
    /// may be started yet, and is waited for.
    #[command(after_help = "Example: forkyard wait p-3 --until removed --timeout 60")]
    Wait(Wait),
    /// Power VMs off; their records stay until `rm`.
    #[command(after_help = "Example: forkyard stop p, and later forkyard start p")]
    Stop(Some),
    /// End VMs and remove all that is theirs.
    #[command(after_help = "Example: forkyard rm p-1 p-2, or forkyard rm --all")]
    Rm(Some),
    /// Guest images: list, pull, build, remove, import, export.
    #[command(subcommand)]
    Image(Image),
    /// Find, and with --repair remove, what crashes left behind.
    #[command(after_help = "Example: forkyard doctor --repair")]
    Doctor(Doctor),
    /// Show what happens on the host, as it happens: VMs, forks, tickets, checkpoints, images,
    /// nodes, transfers.
    ///
    /// A line an event; with `-o json` a line of JSON. Ends with the daemon, and then exits with 4
    /// and tells the position from which another call goes on by `--since`; interrupted, it exits
    /// with 130. If events were missed, because this command or its reader was too slow or came too
    /// late, an event `lagged` says how many. Of a cluster, the node that is asked shows its own.
    #[command(
        after_help = "Examples:\n  forkyard events\n  forkyard events --vm p --kind vm,fork\n  forkyard events --since 0 --no-follow -o json"
    )]
    Events(Events),
    /// Watch what the VMs use of the host.
    #[command(after_help = "Example: forkyard top, or forkyard top --once -o json")]
    Top(Top),
    /// Nodes of a cluster: list, invite, drain, activate, remove; quotas.
    #[command(subcommand)]
    Node(Node),
    /// Schedule vCPUs: a policy for real VMs, or policies in the simulator.
    #[command(subcommand)]
    Sched(Sched),
    /// Volumes: disks that outlive the VMs that write them.
    #[command(subcommand)]
    Volume(Volume),
    /// Links to other hosts: budgets for what is sent of volumes.
    #[command(subcommand)]
    Link(Link),
    /// Substrates: VMs that are kept small on disk, and woken as independent ones.
    #[command(subcommand)]
    Substrate(Substrate),
    /// Tickets that guests were granted and that are not used up.
    #[command(subcommand)]
    Ticket(Ticket),
    /// Tokens with which clients of a gateway reach ports of VMs: give out, list, take back.
    #[command(subcommand)]
    Share(Share),
    /// Tokens for users of the API over the network: create, list, remove.
    #[command(subcommand)]
    Token(Token),
    /// Serve the Model Context Protocol on standard input and output, so that
    /// an agent can run, fork and use VMs.
    #[command(
        after_help = "Example, as an MCP client's configuration:\n  {\"command\": \"forkyard\", \"args\": [\"mcp\"]}"
    )]
    Mcp,
    /// VMs that adapt their own demand: told to, policed, rehearsed, modelled.
    #[command(
        subcommand,
        after_help = "Examples:\n  forkyard friendly set web\n  forkyard friendly show web\n  forkyard friendly police\n  forkyard friendly try --config friendly.toml"
    )]
    Friendly(Friendly),
    /// Print what makes a shell complete commands and names; names of VMs and the like are asked
    /// of the daemon.
    #[command(
        after_help = "Examples:\n  source <(forkyard completion bash)\n  forkyard completion fish >~/.config/fish/completions/forkyard.fish"
    )]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Write a manual page for each command.
    #[command(
        hide = true,
        after_help = "Example: forkyard manual /usr/local/share/man/man1"
    )]
    Manual {
        /// Folder, which is made.
        folder: PathBuf,
    },
    /// Measure forks beside QEMU's own save and restore, and cold boot.
    #[command(after_help = "Example: forkyard bench --clones 1,4,16 --rounds 3 --out bench/out")]
    Bench(Bench),
}

/// `run`
#[derive(Debug, ClapArgs)]
pub struct Run {
    /// Image: see `forkyard image ls`.
    #[arg(required_unless_present = "from")]
    pub image: Option<String>,
    /// Take a VM of this substrate instead, one that is kept ready if there is one.
    #[arg(long, value_name = "SUBSTRATE", conflicts_with_all = ["image", "cold", "kernel", "volume", "data", "node", "spread", "no_wait"])]
    pub from: Option<VmName>,
    /// Name; made up from the image's if absent.
    #[arg(long)]
    pub name: Option<VmName>,
    /// vCPUs: 1 if absent, of a substrate as many as were docked.
    #[arg(long)]
    pub vcpus: Option<u8>,
    /// Memory, in MiB unless a unit is said (512M, 1G): 256 MiB if absent, of a substrate as much as was docked.
    #[arg(long, value_parser = memory)]
    pub memory: Option<ByteCount>,
    /// Root disk, in MiB unless a unit is said (4G), of a VM that is taken of a substrate: as large as it was docked or larger.
    #[arg(long, value_name = "SIZE", value_parser = memory, requires = "from")]
    pub disk: Option<ByteCount>,
    /// Clones to keep warm: a fork of up to so many starts no QEMU.
    #[arg(long, default_value_t = 0)]
    pub warm: u16,
    /// Boot it even if a first boot of the image is kept that it could be woken from.
    #[arg(long)]
    pub cold: bool,
    #[command(flatten)]
    pub disks: Disks,
    /// A kernel of your own, with virtio and ext4 built in.
    #[arg(long)]
    pub kernel: Option<PathBuf>,
    /// Hosts that it is to be able to move to: nodes of the cluster or peers by name, or `peers` for
    /// all. Its CPU has no feature that one of theirs lacks.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub cpu_baseline: Vec<String>,
    /// A VM whose family's network it joins: the two reach each other, by that family's rights.
    #[arg(long, value_name = "VM", conflicts_with_all = ["max_clones", "out", "allow", "deny", "rate"])]
    pub join: Option<String>,
    /// Most clones of its family, theirs included, alive or reserved at once.
    #[arg(long)]
    pub max_clones: Option<u16>,
    /// A file or folder in the guest that no clone inherits; may be repeated.
    #[arg(long = "secret", value_name = "PATH")]
    pub secrets: Vec<String>,
    /// Label to tell it apart by, which its clones have, too; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = exec::variable)]
    pub labels: Vec<(String, String)>,
    /// Variable for every command that is run in it from outside; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = exec::variable)]
    pub env: Vec<(String, String)>,
    /// The node of a cluster that it is to run on; the one that is asked, if that
    /// has room, if absent.
    #[arg(long, value_name = "NAME")]
    pub node: Option<NodeName>,
    /// Run it on the node with most vCPUs free.
    #[arg(long, conflicts_with = "node")]
    pub spread: bool,
    /// Time to wait for it.
    #[command(flatten)]
    pub patience: Patience,
    /// Life.
    #[command(flatten)]
    pub life: Life,
    /// Rights on the network.
    #[command(flatten)]
    pub network: Network,
}

/// `fork`
#[derive(Debug, ClapArgs)]
pub struct Fork {
    /// Name or id of the VM.
    pub vm: String,
    /// Clones wanted.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub count: u16,
    /// Spare the parent: it runs on while its memory is copied, and the clones
    /// come a little later.
    #[arg(long)]
    pub live: bool,
    /// A file or folder in the guest that these clones do not inherit, beside
    /// those `run` was told of; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub scrub: Vec<String>,
    /// Let them inherit what `run` was told to keep secret.
    #[arg(long)]
    pub inherit_secrets: bool,
    /// Hosts to make them on, in turns: nodes of the cluster or peers of the
    /// daemon by name, and `here`.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub to: Vec<String>,
    /// In a cluster: make each on the node with most vCPUs free.
    #[arg(long, conflicts_with = "to")]
    pub spread: bool,
    /// Have those on other hosts fetch all their pages in the background, so that
    /// they need this host no more.
    #[arg(long)]
    pub settle: bool,
    /// Wait until they have, and show how far they are.
    #[arg(long, requires = "settle", conflicts_with = "no_wait")]
    pub settled: bool,
    /// Time to wait for them.
    #[command(flatten)]
    pub patience: Patience,
}

#[cfg(test)]
mod tests;
