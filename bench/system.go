package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/api"
	"mariposa/assembly"
	"mariposa/auth"
	"mariposa/client"
	"mariposa/seal"
	"mariposa/store"
)

// Environment is the environment of a benchmark.
type Environment struct {
	Store     store.Store // must be empty; afterwards it contains only logs; the benchmark closes it
	StoreName string
	Dir       string    // for data kept during the run
	Profiles  string    // directory for profiles; empty: none
	Progress  io.Writer // progress messages
}

// system is the system under load: a control plane and its nodes.
type system struct {
	Environment
	store      *timed
	token      string // the installation admin's token
	join       string // the agents' token
	control    *assembly.Control
	client     *client.Client // uses that token
	agents     sync.WaitGroup
	stopAgents context.CancelFunc // ends the agents
	held       string             // a result that is not printed yet
}

// A phase is a part of a benchmark.
type phase struct {
	name string
	do   func(context.Context) error
}

// run runs a phase and prints its result. If the phase is interrupted, the error says so:
// an incomplete phase has no result. Whether it is complete is decided once.
func (s *system) run(ctx context.Context, p phase) error {
	err := p.do(ctx)
	if ctx.Err() != nil {
		s.held = ""
		return fmt.Errorf("interrupted while %s: this phase has no result", p.name)
	}
	s.printHeld()
	return err
}

// begin starts a system on an empty store, with dummy nodes.
func begin(ctx context.Context, g Environment, nodes int) (*system, error) {
	s := &system{Environment: g, store: &timed{Store: g.Store}, token: assembly.Secret(), stopAgents: func() {}}
	err := s.mustBeEmpty(ctx)
	if err == nil {
		err = s.start(ctx, nodes)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// end stops everything and closes the store.
func (s *system) end() {
	s.stopAgents()
	s.agents.Wait()
	if s.control != nil {
		s.control.Stop()
		return
	}
	_ = s.store.Close() // nothing was written to it
}

// mustBeEmpty returns an error if the store is in use.
func (s *system) mustBeEmpty(ctx context.Context) error {
	n := 0
	if _, err := s.store.Snapshot(ctx, func(store.Record) error { n++; return nil }); err != nil {
		return err
	}
	if n > 0 {
		return fmt.Errorf("the store is not empty (%d objects): use a separate, empty store, because the benchmark leaves data in it", n)
	}
	return nil
}

// progress prints what begins.
func (s *system) progress(format string, args ...any) {
	s.printHeld()
	fmt.Fprint(s.Progress, stamped(format, args))
}

// result prints a result once the phase goes on to something else, or is complete.
func (s *system) result(format string, args ...any) {
	s.printHeld()
	s.held = stamped(format, args)
}

func (s *system) printHeld() {
	fmt.Fprint(s.Progress, s.held)
	s.held = ""
}

func stamped(format string, args []any) string {
	return fmt.Sprintf("%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (s *system) start(ctx context.Context, nodes int) error {
	s.join = assembly.Secret()
	err := auth.EnsureToken(ctx, s.store, s.token, mariposa.TokenSpec{Use: mariposa.TokenAdmin, Name: "bench", User: mariposa.FirstUser, Created: time.Now()}, "for a benchmark")
	if err != nil {
		return err
	}
	s.control, err = assembly.Start(ctx, assembly.Config{
		Store: s.store, Ring: seal.NewRing(), Listen: "127.0.0.1:0", JoinToken: s.join, Version: "bench",
		Limits: api.Limits{RequestRate: 1 << 20, Requests: 1 << 20}, // measure the server, not its limits
	})
	if err != nil {
		return err
	}
	if s.client, err = client.New(client.Options{URL: s.control.URL, Token: s.token}); err != nil {
		return err
	}
	link := agent.Link{Servers: []string{s.control.URL}, Token: s.join}
	during, stopAgents := context.WithCancel(ctx)
	s.stopAgents = stopAgents
	for i := range nodes {
		name := fmt.Sprintf("bench-%d", i+1)
		dir, err := os.MkdirTemp(s.Dir, name+"-")
		if err != nil {
			return err
		}
		s.agents.Go(func() {
			err := assembly.RunNode(during, link, assembly.NodeConfig{Dir: dir, Name: name, Dummy: true, InMemory: true})
			if err != nil && during.Err() == nil {
				fmt.Fprint(s.Progress, stamped("node %s stopped: %v", []any{name, err})) // concurrently with a phase
			}
		})
	}
	if nodes == 0 {
		return nil // the benchmark starts its own
	}
	err = awaitCondition(ctx, func() (bool, error) {
		all, err := s.client.Nodes(ctx)
		return err == nil && len(all.Nodes) == nodes, err
	})
	s.progress("%d nodes connected", nodes)
	return err
}

// emptyStore removes everything from the store except logs. The projects are already
// deleted, so only nodes, users and keys of the benchmark are left.
func (s *system) emptyStore(ctx context.Context) error {
	s.stopAgents()
	s.agents.Wait()
	var left []store.Write
	_, err := s.store.Snapshot(ctx, func(r store.Record) error {
		left = append(left, store.Write{Kind: r.Kind, ID: r.ID, Delete: true})
		return nil
	})
	for len(left) > 0 && err == nil {
		n := min(1000, len(left))
		err = s.store.Commit(ctx, store.Unit{Writes: left[:n]})[0].Err
		left = left[n:]
	}
	return err
}

// awaitDeleted waits until the last project is deleted.
func (s *system) awaitDeleted(ctx context.Context) error {
	return awaitCondition(ctx, func() (bool, error) { return s.control.Picture().Projects.Len() == 0, nil })
}

// awaitIdle waits until no task is open, so that the next one is not refused.
func (s *system) awaitIdle(ctx context.Context) error {
	return awaitCondition(ctx, func() (bool, error) { return s.control.Picture().Tasks.Len() == 0, nil })
}

// profiled runs part and writes its CPU profile.
func (s *system) profiled(ctx context.Context, name string, part func(context.Context) error) error {
	if s.Profiles == "" {
		return part(ctx)
	}
	f, err := os.Create(filepath.Join(s.Profiles, name+".pprof"))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = part(ctx)
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

// writeHeapProfile writes a heap profile.
func (s *system) writeHeapProfile() error {
	if s.Profiles == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(s.Profiles, "heap.pprof"))
	if err != nil {
		return err
	}
	runtime.GC()
	return errors.Join(pprof.WriteHeapProfile(f), f.Close())
}

// awaitCondition polls until a condition is true.
func awaitCondition(ctx context.Context, so func() (bool, error)) error {
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// runAll runs functions concurrently and returns when all are done. The first error
// cancels the others.
func runAll(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, part := range parts {
		all.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return ctx.Err()
}

// forEach runs n jobs, atOnce at a time.
func forEach(ctx context.Context, n, atOnce int, do func(ctx context.Context, i int) error) error {
	next := make(chan int)
	parts := []func(context.Context) error{func(ctx context.Context) error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}}
	for range atOnce {
		parts = append(parts, func(ctx context.Context) error {
			for i := range next {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return runAll(ctx, parts...)
}
