// Command mariposa is the whole system in one binary: control plane, node agent and
// client. It contains only wiring: flags, start, signals.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"mariposa/cli"
	"mariposa/driver/kvm"
	"mariposa/driver/lxc"
	"mariposa/driver/process"
)

// version is set at build time.
var version = "dev"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "shim" {
		os.Exit(process.ShimMain(os.Args[2:])) // before anything else: a shim runs next to every process instance
	}
	if len(os.Args) > 1 && os.Args[1] == kvm.SupervisorCommand {
		os.Exit(kvm.SupervisorMain(os.Args[2:])) // the same next to every virtual machine
	}
	if len(os.Args) > 1 && os.Args[1] == lxc.SupervisorCommand {
		os.Exit(lxc.SupervisorMain(os.Args[2:])) // the same next to every system container
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(40) // the heap is large and long-lived: memory is more expensive here than GC time
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := cli.Main(ctx, os.Args[1:], cli.Env{Version: version}, commands()...)
	stop()
	os.Exit(code)
}

// commands returns the commands beside those of the client.
func commands() []*cobra.Command {
	return []*cobra.Command{devCommand(), serverCommand(), agentCommand(), backupCommand(), restoreCommand(), imageCommand(), healthCommand(), benchCommand()}
}
