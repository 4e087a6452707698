package wire_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/wire"
)

// frames returns one frame of each type.
func frames() []wire.Frame {
	code := 3
	at := time.Date(2026, 11, 1, 8, 0, 0, 5, time.UTC)
	status := mariposa.InstanceStatus{
		State: mariposa.StateFailed, Since: at, Generation: 4, PhysicalID: "x1", Addresses: []string{"127.0.0.1:80"},
		Started: at, Finished: at, ExitCode: &code, Restarts: 2, ManualRestarts: 1, Reason: "exited with code 3", Details: map[string]string{"a": "b"},
	}
	return []wire.Frame{
		{Seq: 1, Hello: &wire.Hello{Protocol: wire.Protocol, Node: "n1", Key: "a key that is long", Name: "n1", Traits: map[string]string{"gpu": "yes"}, Drivers: []mariposa.ComputeType{"dummy"}}},
		{Seq: 1, Welcome: &wire.Welcome{Epoch: 3, Cluster: "c", Incarnation: "i", HeartbeatInterval: 5 * time.Second}},
		{Seq: 2, Assign: &wire.Assign{
			Snapshot: true, Last: true,
			Workloads: map[string]*mariposa.Workload{"w": {Compute: "dummy", Command: []string{"a", "b"}, Environment: []mariposa.Variable{{Name: "A", Value: "ü\x00"}}, Files: []mariposa.Variable{{Name: "/run/secrets/db", Value: "a\nb"}}, Dummy: &mariposa.Dummy{Wait: time.Second}}},
			Items:     []wire.Assignment{{ID: "i1", Name: "web.1", Generation: 2, Goal: mariposa.GoalRunning, ManualRestarts: 2, Workload: "w", Status: &status}},
		}},
		{Seq: 2, Mdata: &wire.Mdata{Items: []wire.MdataItem{{ID: "i1", Number: 7, Values: []mariposa.Variable{{Name: "com.example.key", Value: "<\u2028>"}}}, {ID: "i2", Number: 8}}}},
		{Seq: 2, Report: &wire.Report{Inventory: true, Items: []wire.Status{{ID: "i1", Status: status}}, Quarantined: []mariposa.Quarantined{{ID: "q"}}}},
		{Heartbeat: &wire.Heartbeat{Sent: 7}},
		{Seq: 4, Bye: &wire.Bye{Reason: "no", Final: true}},
		{Seq: 5, Crash: &wire.Crash{Instance: "i1"}},
	}
}

// FuzzDecode checks that decoding foreign bytes never panics, that a frame carries
// exactly one message, and that it survives a round trip.
// Small values in a frame take much memory once they are read.
func TestAFrameWithTooManyValuesIsRefused(t *testing.T) {
	t.Parallel()
	for name, items := range map[string]string{"objects": strings.Repeat("{},", 200_000) + "{}", "lists": strings.Repeat("[],", 1_000_000) + "{}"} {
		if _, err := wire.Decode([]byte(`{"seq":2,"report":{"items":[` + items + `]}}`)); mariposa.CodeOf(err) != mariposa.TooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
	texts := strings.Repeat(`{,[\"`, 300_000) // inside a text they mean nothing
	f, err := wire.Decode([]byte(`{"seq":2,"bye":{"reason":"` + texts + `"}}`))
	if err != nil || len(f.Bye.Reason) != 4*300_000 {
		t.Errorf("a long text: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, fr := range frames() {
		b, err := wire.Encode(fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{
		"", "null", "{}", "[]", `{"seq":1}`, `{"seq":1,"beat":{},"bye":{}}`, `{"seq":-1,"beat":{"seen":9223372036854775807}}`,
		`{"seq":1e99,"beat":{}}`, `{"seq":1,"beat":null}`, `{"seq":1,"beat":{}} {}`, `{"crash":{"instance":7}}`,
		`{"seq":1,"mdata":{"items":[{"id":"i","number":-9223372036854775808,"values":[{}]},null]}}`, `{"seq":1,"mdata":{},"assign":{}}`, `{"mdata":null,"seq":2}`,
		`{"seq":1,"assign":{"items":[{"id":"i","goal":"stopped","bounces":-1}],"workloads":{"":null}}}`,
		`{"seq":1,"report":{"items":[{"status":{"since":"9999-12-31T23:59:59Z"}}]}}`, strings.Repeat("[", 20000), "{\"hello\":{\"name\":\"\xff\"}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := wire.Decode(b)
		if err != nil {
			if mariposa.CodeOf(err) == mariposa.Internal {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		n := 0
		for _, set := range []bool{fr.Hello != nil, fr.Welcome != nil, fr.Assign != nil, fr.Mdata != nil, fr.Report != nil, fr.Heartbeat != nil, fr.Bye != nil, fr.Crash != nil} {
			if set {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("a frame that says %d things was let through", n)
		}
		once, err := wire.Encode(fr)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := wire.Decode(once)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		twice, err := wire.Encode(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("the round trip changed\n%s to\n%s (%v)", once, twice, err)
		}
	})
}

func TestEveryFrameSurvivesTheRoundTrip(t *testing.T) {
	t.Parallel()
	for _, fr := range frames() {
		b, err := wire.Encode(fr)
		if err != nil {
			t.Fatal(err)
		}
		got, err := wire.Decode(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if b2, _ := wire.Encode(got); !bytes.Equal(b, b2) {
			t.Errorf("%s became %s", b, b2)
		}
	}
}

func TestAFrameThatIsTooLargeIsRefusedUnread(t *testing.T) {
	t.Parallel()
	_, err := wire.Decode(bytes.Repeat([]byte(" "), wire.MaxFrame+1))
	if mariposa.CodeOf(err) != mariposa.TooLarge {
		t.Errorf("got %v", err)
	}
}

func TestAFrameThatSaysNothingOrTwoThingsIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`{"seq":1}`, `{"seq":1,"beat":{"seen":1},"bye":{"reason":""}}`, `{"seq":1,"beat":null}`} {
		if _, err := wire.Decode([]byte(s)); mariposa.CodeOf(err) != mariposa.InvalidArgument {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestAcceptTakesTheNextIgnoresTheOldAndRefusesAGap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var o wire.FrameOrder
		seen := int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "frames") {
			seq := seen + rapid.Int64Range(-3, 3).Draw(t, "step")
			next, err := o.Accept(seq)
			switch {
			case seq == seen+1:
				if !next || err != nil {
					t.Fatalf("frame %d after %d: %v, %v", seq, seen, next, err)
				}
				seen = seq
			case seq <= seen:
				if next || err != nil {
					t.Fatalf("old frame %d after %d: %v, %v", seq, seen, next, err)
				}
			default:
				if next || err == nil {
					t.Fatalf("frame %d after %d was taken", seq, seen)
				}
			}
			if o.Check(&wire.Heartbeat{Sent: seen}) != nil || o.Check(&wire.Heartbeat{Sent: seen + 1}) == nil {
				t.Fatalf("it does not count %d frames", seen)
			}
		}
	})
}
