package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"mariposa/bench"
	"mariposa/cli"
)

func benchRequestsCommand() *cobra.Command {
	var o bench.RequestsOptions
	c := &cobra.Command{
		Use:   "requests",
		Short: "Send requests through a load balancer during updates and restarts, and count lost ones",
		Long: "Start a server, two agents and a service of processes behind a load balancer, and send requests at a\n" +
			"steady rate while the service is updated and scaled down, a node is drained, and the server and the\n" +
			"agents are killed and started again. Then do the same update with reloads of a plain HAProxy.\n\nNeeds HAProxy on this machine.",
		Args: cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if min(o.Instances, o.Rate, o.Clients) < 1 {
				return cli.Usage(errors.New("--instances, --rate and --clients must be at least 1"))
			}
			slog.SetDefault(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
			if o.Dir, err = os.MkdirTemp("", "mariposa-bench-"); err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(o.Dir) }() // a temporary directory
			if o.Executable, err = os.Executable(); err != nil {
				return err
			}
			if o.Executable, err = filepath.EvalSymlinks(o.Executable); err != nil {
				return err
			}
			o.Progress = cmd.ErrOrStderr()
			result, err := bench.Requests(cmd.Context(), o)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
		},
	}
	c.Flags().IntVar(&o.Instances, "instances", 4, "number of instances behind the load balancer")
	c.Flags().IntVar(&o.Rate, "rate", 500, "requests per second")
	c.Flags().IntVar(&o.Clients, "clients", 20, "number of concurrent clients; half of them keep their connections")
	return c
}

// benchRespondCommand is what instances of the benchmark of requests run.
func benchRespondCommand() *cobra.Command {
	return &cobra.Command{
		Use: "respond", Short: "Answer HTTP requests on $PORT, until SIGTERM", Args: cli.Args(0, 0), Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			s := &http.Server{
				Addr: net.JoinHostPort("127.0.0.1", os.Getenv("PORT")), ReadHeaderTimeout: 10 * time.Second,
				Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(20 * time.Millisecond) // the work of a request
					_, _ = w.Write([]byte("ok\n"))
				}),
			}
			ended := make(chan error, 1)
			go func() { ended <- s.ListenAndServe() }()
			select {
			case err := <-ended:
				return err
			case <-ctx.Done():
				return s.Close() // as many programs do: what is in progress is lost
			}
		},
	}
}
