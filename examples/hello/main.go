// Hello has the programs of the example projects: a backend that returns a greeting, and a
// web front end that calls it. In a project of three tiers, an app that counts visits in a
// store takes the place of the backend. All are ordinary programs that know nothing about
// Mariposa. They listen on $PORT or on the port given by --port, log one line per request,
// shut down gracefully on SIGTERM and lose nothing if they are killed.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage: PORT=7101 hello backend
       PORT=8080 BACKEND=127.0.0.1:7101 [GREETING=hello] hello web
       PORT=7101 STORE=127.0.0.1:5432 hello app
       PORT=5432 [DIR=/data] hello store
       hello backend --port 7101

They listen on 127.0.0.1, or on the address in LISTEN: 0.0.0.0 in containers and machines`

// farewell is how long open requests may take to finish after SIGTERM.
const farewell = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

// run serves the mode given in args until ctx is done.
func run(ctx context.Context, args []string, getenv func(string) string) error {
	port := getenv("PORT")
	if len(args) == 3 && args[1] == "--port" {
		args, port = args[:1], args[2]
	}
	if len(args) != 1 {
		return errors.New("the mode is missing\n" + usage)
	}
	mode := args[0]
	me := identity{
		Name:     cmp.Or(getenv("MARIPOSA_NAME"), mode),
		Instance: getenv("MARIPOSA_INSTANCE"),
		PID:      os.Getpid(),
	}
	var handler http.Handler
	switch mode {
	case "backend":
		handler = backend(me)
	case "web":
		address := getenv("BACKEND")
		if address == "" {
			return errors.New("BACKEND is not set; set it to the backend's host:port\n" + usage)
		}
		handler = web(me, cmp.Or(getenv("GREETING"), "hello"), address)
	case "app":
		address := getenv("STORE")
		if address == "" {
			return errors.New("STORE is not set; set it to the store's host:port\n" + usage)
		}
		handler = app(me, address)
	case "store":
		s, err := openStore(me, getenv("DIR"))
		if err != nil {
			return err
		}
		handler = s
	default:
		return fmt.Errorf("unknown mode %q\n%s", mode, usage)
	}
	if port == "" {
		return errors.New("PORT is not set; set it to the port to listen on\n" + usage)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(getenv("LISTEN"), "127.0.0.1"), port))
	if err != nil {
		return err
	}
	return serve(ctx, listener, handler, log.New(os.Stdout, me.Name+" ", log.LstdFlags|log.Lmsgprefix))
}

// serve answers requests on listener until ctx is done, then waits for open requests to
// finish.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, logger *log.Logger) error {
	server := &http.Server{Handler: logged(handler, logger), ErrorLog: logger, ReadHeaderTimeout: 5 * time.Second}
	logger.Printf("pid %d listens on %s", os.Getpid(), listener.Addr())

	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// ctx is already done, so the shutdown needs its own deadline.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return fmt.Errorf("requests were cut off after %s: %w", farewell, err)
	}
	logger.Print("asked to stop, and done")
	return nil
}

// logged writes one log line per request.
func logged(next http.Handler, logger *log.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		logger.Printf("%s %s %d %s", r.Method, r.URL.Path, answer.status, time.Since(start).Round(time.Microsecond))
	})
}

// statusWriter records the response status for the log.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}
