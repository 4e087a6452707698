package gate_test

import (
	"context"
	"errors"
	"testing"

	"mariposa/driver/gate"
	"mariposa/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var errClosed = errors.New("closed")

func TestWaitCancelsOperationsAndWaitsForThem(t *testing.T) {
	t.Parallel()
	g := gate.New(errClosed)
	ctx, leave, err := g.Enter(t.Context())
	if err != nil || ctx.Err() != nil {
		t.Fatalf("%v, %v", err, ctx.Err())
	}
	ran := make(chan struct{})
	g.Go(func() {
		<-g.Context().Done()
		close(ran)
	})
	if !g.Shut() || g.Shut() || !g.IsShut() {
		t.Error("it is not shut exactly once")
	}
	if _, _, err := g.Enter(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("a late operation gets %v", err)
	}
	g.Go(func() { t.Error("late work runs") })
	waited := make(chan struct{})
	go func() {
		g.Wait()
		close(waited)
	}()
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, errClosed) {
		t.Errorf("the operation ends with %v", cause)
	}
	<-ran
	select {
	case <-waited:
		t.Error("it did not wait for the operation")
	default:
	}
	leave()
	<-waited
}

func TestAnOperationEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	g := gate.New(errClosed)
	caller, cancel := context.WithCancel(t.Context())
	ctx, leave, err := g.Enter(caller)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ctx.Done()
	leave()
	if _, _, err := g.Enter(caller); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled caller gets %v", err)
	}
	g.Shut()
	g.Wait()
}
