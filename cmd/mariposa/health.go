package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mariposa/cli"
	"mariposa/client"
	"mariposa/healthagent"
)

type healthFlags struct {
	server, project, organization, token, ca, listen string
	insecure                                         bool
	every                                            time.Duration
}

func healthCommand() *cobra.Command {
	var f healthFlags
	c := &cobra.Command{
		Use:   "health",
		Short: "Run the health checks of a project from here, and serve the results",
		Long: "Run the health checks of one project from this machine, for example from inside the project's\n" +
			"network, and serve the results under /v1/healthchecks. The agents of the nodes run the checks as\n" +
			"well, and only their results decide what is replaced. `mariposa service health` shows those.",
		Example: "  mariposa health --server http://127.0.0.1:8080 --project shop\n  curl http://127.0.0.1:8090/v1/healthchecks",
		Args:    cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			return runHealth(cmd.Context(), f)
		},
	}
	c.Flags().StringVar(&f.server, "server", "", "URL of the control plane, or several separated by commas (default: MARIPOSA_URL)")
	c.Flags().StringVarP(&f.project, "project", "j", "", "project whose checks are run")
	c.Flags().StringVarP(&f.organization, "org", "o", "", "organization that the project belongs to (default: your own)")
	c.Flags().StringVar(&f.token, "token-file", "", "file with the API token (default: MARIPOSA_TOKEN); the role viewer is enough")
	c.Flags().StringVar(&f.ca, "ca", "", "file with certificates (PEM) to trust in addition to those of the system")
	c.Flags().BoolVar(&f.insecure, "insecure", false, "allow plain HTTP to other machines; the token is sent unencrypted")
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:8090", "address to serve the results on; on other addresses than loopback, requests must have the API token")
	c.Flags().DurationVar(&f.every, "interval", 10*time.Second, "how often the definitions are read")
	return c
}

func runHealth(ctx context.Context, f healthFlags) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	source, err := client.New(o)
	if err != nil {
		return cli.Usage(err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return fmt.Errorf("cannot serve the results on %s: %w; choose another address with --listen", f.listen, err)
	}
	token := o.Token
	if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil && at.Addr().Unmap().IsLoopback() {
		token = ""
	}
	a := healthagent.New(source, f.project, f.every)
	server := &http.Server{
		Handler: a.Handler(token), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	defer server.Close()
	slog.Info("serving the health checks", "project", f.project, "url", "http://"+l.Addr().String()+"/v1/healthchecks")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { cancel(<-ended) }() // ends with the server
	a.Run(ctx)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// options checks the flags and returns how to reach the server.
func (f *healthFlags) options() (client.Options, error) {
	o := client.Options{
		URL: cmp.Or(f.server, os.Getenv("MARIPOSA_URL")), Token: os.Getenv("MARIPOSA_TOKEN"), Organization: f.organization,
		Insecure: f.insecure, UserAgent: "mariposa-health/" + version,
	}
	switch {
	case o.URL == "" || f.project == "":
		return o, cli.Usage(errors.New("--server and --project are required"))
	case f.every < time.Second:
		return o, cli.Usage(errors.New("--interval must be at least 1s"))
	}
	if f.ca != "" {
		roots, err := os.ReadFile(f.ca)
		if err != nil {
			return o, fmt.Errorf("cannot read the certificates: %w", err)
		}
		o.Roots = roots
	}
	if f.token != "" {
		token, err := os.ReadFile(f.token)
		if err != nil {
			return o, fmt.Errorf("cannot read the token: %w", err)
		}
		o.Token = strings.TrimSpace(string(token))
	}
	if o.Token == "" {
		return o, cli.Usage(errors.New("a token is required: set MARIPOSA_TOKEN or use --token-file; `mariposa token create` makes one"))
	}
	return o, nil
}
