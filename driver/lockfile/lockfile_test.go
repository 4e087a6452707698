package lockfile_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"mariposa/driver/lockfile"
)

func TestALockHasOneHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockfile.Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockfile.Try(path); !errors.Is(err, lockfile.ErrLocked) {
		t.Errorf("a second holder gets %v", err)
	}
	if _, err := lockfile.Within(path, time.Millisecond); !errors.Is(err, lockfile.ErrLocked) {
		t.Errorf("after a moment it gets %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockfile.Wait(canceled, path); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled one gets %v", err)
	}
	got := make(chan error, 1)
	go func() {
		f, err := lockfile.Wait(t.Context(), path)
		if err == nil {
			err = f.Close()
		}
		got <- err
	}()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the next one gets %v", err)
	}
	again, err := lockfile.Within(path, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close() // the test is over
	if _, err := lockfile.Try(filepath.Join(path, "below")); err == nil || errors.Is(err, lockfile.ErrLocked) {
		t.Errorf("a path that cannot be opened gives %v", err)
	}
}
