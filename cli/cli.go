// Package cli implements the client commands. It owns their wording, tables, progress and
// exit codes. It talks to the server only through package client. It knows neither the
// network nor the store nor how to start a server: the binary adds those commands.
//
// Standard output contains the result. Standard error contains progress, differences,
// prompts and errors, so that a script can use the result while the user still sees the
// rest.
package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mariposa/client"
)

// The exit codes that scripts rely on.
const (
	exitOK     = 0
	exitError  = 1
	exitUsage  = 2
	exitFailed = 3   // a task failed while the command waited for it
	exitLost   = 255 // the connection broke while a command inside an instance was running, as with ssh
)

// Env is the environment of a command. Nil fields are taken from the process.
type Env struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	Environ func() []string // NAME=value; all that Compose files can refer to
	Version string

	// Now returns the current time; times are shown in its zone.
	Now func() time.Time
	// Terminal reports whether a stream is a terminal; Size returns its width and
	// height.
	Terminal func(stream any) bool
	Size     func(stream any) (width, height int)
	// Secret reads a line without echo.
	Secret func(stream any) (string, error)
	// Quiet is how long a task that is followed may have no news until it is asked what it
	// waits for; 0: 2 s.
	Quiet time.Duration
	// Stall is how long a rollout that no single task stands for may make no progress while a
	// command waits for it.
	Stall time.Duration
}

func (e Env) withDefaults() Env {
	e.Stdin = cmp.Or[io.Reader](e.Stdin, os.Stdin)
	e.Stdout, e.Stderr = cmp.Or[io.Writer](e.Stdout, os.Stdout), cmp.Or[io.Writer](e.Stderr, os.Stderr)
	e.Version = cmp.Or(e.Version, "unknown")
	if e.Getenv == nil {
		e.Getenv = os.Getenv
	}
	if e.Environ == nil {
		e.Environ = os.Environ
	}
	if e.Now == nil {
		e.Now = time.Now
	}
	if e.Terminal == nil {
		e.Terminal = isTerminal
	}
	if e.Size == nil {
		e.Size = sizeOf
	}
	if e.Secret == nil {
		e.Secret = readHidden
	}
	e.Quiet, e.Stall = cmp.Or(e.Quiet, 2*time.Second), cmp.Or(e.Stall, 10*time.Minute)
	return e
}

type descriptor interface{ Fd() uintptr }

func isTerminal(stream any) bool {
	f, ok := stream.(descriptor)
	return ok && term.IsTerminal(int(f.Fd()))
}

func sizeOf(stream any) (width, height int) {
	if f, ok := stream.(descriptor); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return w, h
		}
	}
	return 80, 24
}

// Main runs one command line and returns the exit code. Extra commands, such as those
// that start a server, are added to the client commands and follow the same rules for
// flags, errors and exit codes. Canceling the context interrupts the command.
func Main(ctx context.Context, args []string, env Env, extra ...*cobra.Command) int {
	a := &app{env: env.withDefaults(), args: args}
	root := a.root(extra)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if a.server != nil {
		err = a.unknownSelf(ctx, err)
		a.rememberUsed()
		a.server.Close()
	}
	if err == nil {
		err = a.tableError
	}
	if err == nil {
		return exitOK
	}
	if !a.started {
		var known hint
		if !errors.As(err, &known) {
			err = withHint(err, "usage: %s", cmd.UseLine())
		}
		err = Usage(err) // the command did not run, so the command line is wrong
	}
	a.printError(err)
	return exitCode(err)
}

// app is one run of the program.
type app struct {
	env  Env
	args []string

	global struct {
		project, org, url, token, data string
		profile, ca, as                string
		json, noColor, insecure        bool
		table                          tableFlags
	}
	fromEnv      map[string]bool // flags set by an environment variable
	named        string          // the project that an argument names
	everywhere   bool            // the command is about all projects, whichever is named
	started      bool            // a command has begun to run
	file         string          // the current document, for error messages
	documentKind string          // what it contains: manifest, metadata or definition
	input        *bufio.Reader   // standard input, after the first line was read
	server       *client.Client  // once connected
	urls         string          // of the server
	onScreen     atomic.Bool     // a live view covers the terminal
	tableError   error           // a table could not be printed: it has no such column
	silent       bool            // only the ids of tasks are printed

	columnsChecked bool // the columns that the user wants are in the command's tables, or tableError says so
}

func (a *app) root(extra []*cobra.Command) *cobra.Command {
	root := a.group("mariposa", "Run the services that a manifest describes and keep them running",
		a.projectCommand(), a.metaCommand(), a.serviceCommand(), a.initCommand(), a.validateCommand(), a.stateCommand(), a.psCommand(), a.logsCommand(), a.topCommand(), a.eventsCommand(), a.queueCommand(),
		a.instanceCommand(), a.volumeCommand(), a.networkCommand(), a.balancerCommand(), a.namesCommand(), a.nodeCommand(), a.orgCommand(), a.userCommand(), a.tokenCommand(), a.packageCommand(), a.keyCommand(),
		a.openCommand(), a.loginCommand(), a.logoutCommand(), a.whoamiCommand(), a.versionCommand(), a.manCommand())
	root.Long = "Mariposa runs the services that your manifests describe, keeps them running and shows what\nit is doing.\n\n" +
		"Every flag can also be set with an environment variable: --url with MARIPOSA_URL, and so on."
	for _, c := range extra {
		if c.Name() == "server" { // in addition to the commands that work on its store
			c.AddCommand(a.serverSettings(), a.serverList())
		}
	}
	for _, c := range extra {
		if c.HasSubCommands() && !c.Runnable() {
			a.runGroup(c)
		}
	}
	root.AddCommand(extra...)
	addAliases(root)
	groupCommands(root)
	root.Version = a.env.Version
	root.SetVersionTemplate("mariposa {{ .Version }}\n")
	root.PersistentPreRunE = a.prepare
	root.SetFlagErrorFunc(a.flagError)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(a.env.Stdin)
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)

	flags := root.PersistentFlags()
	flags.StringVarP(&a.global.project, "project", "j", "", "project, by name or id")
	flags.StringVarP(&a.global.org, "org", "o", "", "organization that the project belongs to")
	flags.BoolVar(&a.global.json, "json", false, "print only the JSON document of the API")
	flags.StringVar(&a.global.url, "url", "", "URL of the server; separate those of several replicas with commas")
	flags.StringVar(&a.global.token, "token", "", "access token (prefer MARIPOSA_TOKEN or mariposa login)")
	flags.StringVar(&a.global.data, "data", "", "data directory of the dev server on this machine (default $XDG_DATA_HOME/mariposa)")
	flags.StringVar(&a.global.ca, "ca", "", "file with a root certificate to trust in addition to those of the system")
	flags.BoolVar(&a.global.insecure, "insecure", false, "allow plain HTTP to another machine; your token is sent unencrypted")
	flags.StringVar(&a.global.profile, "profile", "", "login profile to use (default: the unnamed one)")
	flags.StringVar(&a.global.as, "as", "", "act for this user (installation admins only); recorded in the audit log")
	a.global.table.add(flags)
	flags.BoolVar(&a.global.noColor, "no-color", false, "disable colors")
	complete(root, "project", a.every(projectNames))
	complete(root, "org", a.every(orgNames))
	complete(root, "as", a.every(userNames))
	complete(root, "profile", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.profileNames(), cobra.ShellCompDirectiveNoFileComp
	})
	a.markStart(root)
	return root
}

// markStart records when a command of the tree starts to run. An error before that is a
// usage error.
func (a *app) markStart(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		a.markStart(c)
	}
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version of mariposa, or approve a version of a project", Args: argsBetween(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return changed(a, &map[string]string{"version": a.env.Version}, nil, "mariposa %s", a.env.Version)
		},
	}
	cmd.AddCommand(a.versionApprove(), a.versionWithdraw())
	return cmd
}

// interrupted reports whether the user interrupted the command.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx)))
}
