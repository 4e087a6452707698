package sqlite

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/store"
)

// childVariable holds the path of the store on which this binary, run again as
// a child, is to write until it is killed.
const childVariable = "MARIPOSA_TEST_WRITE_TO"

func randomWord(n int) string {
	b := make([]byte, n/2)
	crand.Read(b)
	return hex.EncodeToString(b)
}

// child writes for ever, from several goroutines, and prints the revisions that
// were acknowledged. Each unit that writes a spec claims one instance.
func child(path string) int {
	s, err := Open(context.Background(), path, Options{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	failed := make(chan error)
	for range 4 {
		go func() {
			for {
				r := s.Commit(context.Background(), randomUnit(), randomUnit())
				for _, r := range r {
					if r.Err != nil {
						failed <- r.Err
					}
					fmt.Fprintf(os.Stdout, "%d %d\n", r.First, r.Last)
				}
			}
		}()
	}
	fmt.Println(<-failed)
	return 1
}

func randomUnit() store.Unit {
	var u store.Unit
	for range 1 + rand.IntN(5) {
		w := store.Write{Kind: mariposa.KindNode, ID: fmt.Sprint("n", rand.IntN(50))}
		switch rand.IntN(4) {
		case 0:
			w.Delete = true
		case 1:
			w.Status = &mariposa.NodeStatus{Reason: randomWord(200)}
		default:
			w.Spec = &mariposa.NodeSpec{Name: randomWord(200)}
			w.Event.Reason = "claimed"
			u.Claims = append(u.Claims, store.Claim{Node: "n", Take: mariposa.Resources{Instances: 1}})
		}
		u.Writes = append(u.Writes, w)
	}
	return u
}

func TestWhatWasAcknowledgedOutlivesKill9(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	var known int64
	for round := range 8 {
		known = max(known, writeAndKill(t, path, 20+rand.IntN(400)))
		s := open(t, path, Options{})
		revision := verify(t, s)
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

// writeAndKill runs a child until it has acknowledged so many units and returns
// the highest revision among them.
func writeAndKill(t *testing.T, path string, units int) (highest int64) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childVariable+"="+path)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		var first, last int64
		if _, err := fmt.Sscan(lines.Text(), &first, &last); err != nil {
			t.Fatalf("child: %s", lines.Text())
		}
		highest = max(highest, last)
		if n == units {
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the child ended with %v", err)
	}
	return highest
}

// verify expects the log to be whole and the objects and claims to be what the
// log says.
func verify(t *testing.T, s *Store) (revision int64) {
	changes, err := s.Changes(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]store.Record)
	claims := 0
	for i, c := range changes {
		if c.Revision != int64(i+1) {
			t.Fatalf("change %d has revision %d", i, c.Revision)
		}
		if c.Deleted {
			delete(want, c.Record.ID)
		} else {
			want[c.Record.ID] = c.Record
		}
		if c.Event.Reason == "claimed" {
			claims++
		}
	}
	got := make(map[string]store.Record)
	revision, err = s.Snapshot(t.Context(), func(r store.Record) error {
		got[r.ID] = r
		return nil
	})
	if err != nil || revision != int64(len(changes)) {
		t.Fatalf("snapshot at %d of %d, %v", revision, len(changes), err)
	}
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Fatalf("objects differ from the log:\n got %s\nwant %s", g, w)
	}
	ledger, err := s.Ledger(t.Context())
	if err != nil || ledger["n"].Instances != claims {
		t.Fatalf("%v claimed, the log says %d, %v", ledger, claims, err)
	}
	if check := onWriter(t, s, "PRAGMA integrity_check"); check != "ok" {
		t.Fatal(check)
	}
	return revision
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
