package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mariposa/store/storetest"
)

// childVariable contains the path of a store. If it is set, this binary runs as a child
// that writes to the store until it is killed.
const childVariable = "MARIPOSA_TEST_WRITE_TO"

func child(path string) int {
	s, err := Open(context.Background(), path, Options{})
	if err == nil {
		err = storetest.WriteForever(s)
	}
	fmt.Println(err)
	return 1
}

func TestWhatWasAcknowledgedOutlivesKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	var known int64
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		known = max(known, storetest.WriteAndKill(t, childVariable, path, 20+rand.IntN(400)))
		s := open(t, path, Options{})
		revision := storetest.VerifyLog(t, s)
		if check := onWriter(t, s, "PRAGMA integrity_check"); check != "ok" {
			t.Fatal(check)
		}
		if revision < known {
			t.Fatalf("round %d: revision %d was acknowledged, %d is there", round, known, revision)
		}
		if r := commit(t, s, node("verified", fmt.Sprint(round))); r[0].First != revision+1 {
			t.Fatalf("round %d: %+v follows %d", round, r, revision)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnotherProcessIsKeptOutAndToldWhoIsIn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	open(t, path, Options{})
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childVariable+"="+path)
	out, err := c.Output()
	if err == nil || !strings.Contains(string(out), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Fatalf("%v: %s", err, out)
	}
}
