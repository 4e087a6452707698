package storetest

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
	"strings"
	"testing"

	"mariposa"
	"mariposa/store"
)

// WriteForever writes from several goroutines and prints the acknowledged revisions,
// until a unit fails. For each spec that it writes, a unit claims one instance and adds
// one entry to the audit log.
func WriteForever(s store.Store) error {
	failed := make(chan error)
	for range 4 {
		go func() {
			for {
				for _, r := range s.Commit(context.Background(), RandomUnit(), RandomUnit()) {
					if r.Err != nil {
						failed <- r.Err
					}
					fmt.Fprintf(os.Stdout, "%d %d\n", r.First, r.Last)
				}
			}
		}()
	}
	return <-failed
}

// RandomWord returns a random word of n characters.
func RandomWord(n int) string {
	b := make([]byte, n/2)
	crand.Read(b)
	return hex.EncodeToString(b)
}

// taken is the reason of writes that come with a claim.
var taken = mariposa.TextReason("claimed")

// RandomUnit changes a few objects out of a small set.
func RandomUnit() store.Unit {
	var u store.Unit
	for range 1 + rand.IntN(5) {
		w := store.Write{Kind: mariposa.KindNode, ID: fmt.Sprint("n", rand.IntN(50))}
		switch rand.IntN(4) {
		case 0:
			w.Delete = true
		case 1:
			w.Status = &mariposa.NodeStatus{Reason: mariposa.TextReason(RandomWord(200))}
		default:
			w.Spec = &mariposa.NodeSpec{Name: RandomWord(200)}
			w.Event.Reason = taken
			u.Claims = append(u.Claims, store.Claim{Node: "n", Take: mariposa.Resources{Instances: 1}})
			u.Audit = append(u.Audit, mariposa.Audit{Action: "node.update", Object: w.ID, Reason: w.Spec.(*mariposa.NodeSpec).Name})
		}
		u.Writes = append(u.Writes, w)
	}
	return u
}

// WriteAndKill runs the test binary again, as a child that runs WriteForever because of
// a variable, and kills it once it has acknowledged this many units. It returns the
// highest revision among them.
func WriteAndKill(t testing.TB, variable, value string, units int) (highest int64) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), variable+"="+value)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Error(err)
		return 0
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		var first, last int64
		if _, err := fmt.Sscan(lines.Text(), &first, &last); err != nil {
			t.Errorf("child: %s", lines.Text())
			break
		}
		highest = max(highest, last)
		if n == units {
			if err := c.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the child ended with %v", err)
	}
	return highest
}

// VerifyLog expects the log to be complete, and the objects, claims and audit entries to
// match it, after any number of calls of WriteForever.
func VerifyLog(t testing.TB, s store.Store) (revision int64) {
	t.Helper()
	changes, err := s.Changes(context.Background(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]store.Record)
	claims := 0
	var specs []string // as they were written
	for i, c := range changes {
		if c.Revision != int64(i+1) {
			t.Fatalf("change %d has revision %d", i, c.Revision)
		}
		if c.Deleted {
			delete(want, c.Record.ID)
		} else {
			want[c.Record.ID] = c.Record
		}
		if c.Event.Reason.Equal(taken) {
			claims++
			specs = append(specs, c.Record.Spec.(*mariposa.NodeSpec).Name)
		}
	}
	got := make(map[string]store.Record)
	revision, err = s.Snapshot(context.Background(), func(r store.Record) error {
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
	ledger, err := s.Ledger(context.Background())
	if err != nil || ledger["n"].Instances != claims {
		t.Fatalf("%v claimed, the log says %d, %v", ledger, claims, err)
	}
	entries, err := s.Audit(context.Background(), store.AuditQuery{})
	if err != nil || len(entries) != len(specs) {
		t.Fatalf("%d entries in the audit log, the log says %d, %v", len(entries), len(specs), err)
	}
	for i, a := range entries {
		if want := specs[len(specs)-1-i]; a.Reason != want {
			t.Fatalf("entry %d tells of %s, the log of %s", a.ID, a.Reason, want)
		}
	}
	return revision
}
