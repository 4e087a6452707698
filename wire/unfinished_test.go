package wire_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/wire"
	"mariposa/wire/wiretest"
)

func free(context.Context, int, int) error { return nil }

// limitedPipe returns the end of a server, and the connection of an agent.
func limitedPipe(t *testing.T, u *wire.Unfinished) (*wire.Pipe, *websocket.Conn) {
	t.Helper()
	near, far := wiretest.Pair(t)
	p := wire.NewPipe(soon(t), near)
	t.Cleanup(p.Close)
	p.LimitAgent(u, free)
	return p, far
}

func write(t *testing.T, c *websocket.Conn, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err := c.Write(soon(t), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
}

func readHeartbeat(t *testing.T, p *wire.Pipe) {
	t.Helper()
	if f, err := p.Read(soon(t)); err != nil || f.Heartbeat == nil {
		t.Fatalf("got %+v, %v", f, err)
	}
}

const heartbeat = `{"seq":0,"beat":{"sent":0}}`

func TestHeartbeatsDoNotKeepAnUnfinishedFrameInMemory(t *testing.T) {
	t.Parallel()
	ctx, u := soon(t), wire.NewUnfinished(1<<30, 50*time.Millisecond)
	p, far := limitedPipe(t, u)
	write(t, far, "+"+strings.Repeat("x", 50<<10))
	go func() { // ends with the connection
		for far.Write(ctx, websocket.MessageText, []byte(heartbeat)) == nil {
		}
	}()
	err := wiretest.Drain(ctx, p, nil)
	if mariposa.CodeOf(err) != mariposa.InvalidArgument || !strings.Contains(err.Error(), "unfinished for more than 50ms") {
		t.Errorf("got %v", err)
	}
	if n := u.Bytes(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

func TestTheOldestUnfinishedFrameMakesRoomForOthers(t *testing.T) {
	t.Parallel()
	u := wire.NewUnfinished(120<<10, time.Hour)
	old, oldFar := limitedPipe(t, u)
	p, far := limitedPipe(t, u)
	piece := strings.Repeat("x", 50<<10)
	write(t, oldFar, "+"+piece, heartbeat)
	readHeartbeat(t, old)
	write(t, far, `+{"seq":1,"bye":{"reason":"`+piece, heartbeat)
	readHeartbeat(t, p)
	write(t, far, "+"+piece, `."}}`)
	if f, err := p.Read(soon(t)); err != nil || f.Bye == nil || len(f.Bye.Reason) != 100<<10 {
		t.Fatalf("the newer frame does not arrive: %v", err)
	}
	write(t, oldFar, heartbeat)
	if _, err := old.Read(soon(t)); mariposa.CodeOf(err) != mariposa.TooLarge || !strings.Contains(err.Error(), "dropped an unfinished frame") {
		t.Errorf("got %v", err)
	}
	if n := u.Bytes(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

func TestAConnectionThatEndsLeavesNoUnfinishedFrame(t *testing.T) {
	t.Parallel()
	u := wire.NewUnfinished(1<<30, time.Hour)
	p, far := limitedPipe(t, u)
	write(t, far, "+"+strings.Repeat("x", 50<<10), heartbeat)
	readHeartbeat(t, p)
	if n := u.Bytes(); n != 50<<10 {
		t.Errorf("%d bytes are counted", n)
	}
	_ = far.CloseNow()
	if _, err := p.Read(soon(t)); err == nil {
		t.Error("the connection is still there")
	}
	if n := u.Bytes(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}

// long marks a test with much data. It is skipped under the race detector, where it would take
// several times as long and find nothing.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the run without the race detector has it")
	}
}

// pieces divides a frame as a pipe does.
func pieces(frame string) (all []string) {
	for ; len(frame) > 64<<10; frame = frame[64<<10:] {
		all = append(all, "+"+frame[:64<<10])
	}
	return append(all, "."+frame)
}

func TestAnAgentCannotSendWhatIsExpensiveToDecode(t *testing.T) {
	t.Parallel()
	long(t)
	var keys strings.Builder
	for i := range 150_000 {
		fmt.Fprintf(&keys, `"%d":"",`, i)
	}
	for name, items := range map[string]string{
		"keys":    `{"id":"i","status":{"details":{` + keys.String() + `"":""}}}`,
		"objects": strings.Repeat("{},", 30_000) + "{}",
		"bytes":   `{"id":"` + strings.Repeat("x", 9<<20) + `"}`,
	} {
		ctx := soon(t)
		p, far := limitedPipe(t, wire.NewUnfinished(1<<30, time.Hour))
		p.Send(wire.Frame{Seq: 1, Welcome: &wire.Welcome{}})
		go func() { // the refusal may come before everything is written
			for _, piece := range pieces(`{"seq":2,"report":{"items":[` + items + `]}}`) {
				if far.Write(ctx, websocket.MessageText, []byte(piece)) != nil {
					return
				}
			}
		}()
		if _, err := p.Read(soon(t)); mariposa.CodeOf(err) != mariposa.TooLarge {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// honest returns the quarantined instances of a node with many of them.
func honest(n int) []mariposa.Quarantined {
	at := time.Date(2026, 11, 1, 8, 0, 0, 123456789, time.UTC)
	id := strings.Repeat("0123456789", 3)
	all := make([]mariposa.Quarantined, n)
	for i := range all {
		all[i] = mariposa.Quarantined{
			ID: fmt.Sprintf("%s-%d", id, i), Name: "shop-web.1-abcdef", Project: "shop", Compute: mariposa.ComputeDocker, PhysicalID: strings.Repeat("f", 64), State: mariposa.StateRunning,
			Reason: "it was created under another incarnation of the store", Since: at,
			Origin: &mariposa.Provenance{
				Project: id, Service: id, ServiceName: "web", Slot: i + 1, Number: 12, Digest: strings.Repeat("d", 64), Live: strings.Repeat("e", 64), Created: at,
				Mounts:   []mariposa.Mount{{Volume: id, Name: "data", Path: "/var/lib/data"}, {Volume: id, Name: "cache", Path: "/var/cache"}},
				Networks: []mariposa.Join{{Network: id, Attachment: "front", Name: "front"}, {Network: id, Attachment: "back", Name: "back"}},
			},
		}
	}
	return all
}

// What agents send has half of what servers accept, at most.
func TestTheFramesOfAnHonestAgentAreAccepted(t *testing.T) {
	t.Parallel()
	long(t)
	all := honest(10_000)
	var frames []wire.Frame
	count := 0
	for _, part := range wire.PackQuarantined(all) {
		frames = append(frames, wire.Frame{Seq: 2, Report: &wire.Report{Quarantined: part}})
		count += len(part)
	}
	if count != len(all) || len(frames) < 20 {
		t.Errorf("%d instances are in %d frames", count, len(frames))
	}
	code, at, r := 1, time.Date(2026, 11, 1, 8, 0, 0, 123456789, time.UTC), &wire.Report{}
	for i := 0; !r.IsFull(); i++ {
		r.Add(wire.Status{ID: all[i].ID, Status: mariposa.InstanceStatus{
			State: mariposa.StateRunning, Since: at, Health: mariposa.HealthHealthy, Generation: 3, PhysicalID: all[i].PhysicalID, Started: at, Finished: at, ExitCode: &code, Restarts: 1, ManualRestarts: 1,
			Reason: "exited with code 1", Addresses: []string{"10.1.2.3:80", "10.1.2.3:443", "[fd00::1]:80", "[fd00::1]:443"}, Details: map[string]string{"image": "web:1", "pid": "4711", "zone": "z"},
		}})
	}
	frames = append(frames, wire.Frame{Seq: 2, Report: r})
	p, far := limitedPipe(t, wire.NewUnfinished(1<<30, time.Hour))
	p.Send(wire.Frame{Seq: 1, Welcome: &wire.Welcome{}})
	agent := wire.NewPipe(soon(t), far)
	defer agent.Close()
	for _, f := range frames {
		b, err := wire.Encode(f)
		if objects, values := bytes.Count(b, []byte("{")), bytes.Count(b, []byte(",")); err != nil || len(b) > 3<<20/2 || objects > 10_000 || values > 50_000 {
			t.Errorf("a frame with %d instances and %d in quarantine has %d bytes, %d objects and %d values (%v)", len(f.Report.Items), len(f.Report.Quarantined), len(b), objects, values, err)
		}
		agent.Send(f)
		if got, err := p.Read(soon(t)); err != nil || len(got.Report.Quarantined) != len(f.Report.Quarantined) {
			t.Fatal(err)
		}
	}
	whole, err := json.Marshal(all)
	t.Logf("an inventory of 10,000 has %d bytes, %d objects and %d values (%v); the last report %d objects", len(whole), bytes.Count(whole, []byte("{")), bytes.Count(whole, []byte(",")), err, 3*len(r.Items))
}

// Many addresses or long reasons make a frame full before it has 500 instances.
func TestAReportIsFullBeforeItIsTooLarge(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]mariposa.InstanceStatus{
		"addresses": {Addresses: strings.Split(strings.Repeat("1.2.3.4:5 ", 5000), " ")},
		"reasons":   {Reason: strings.Repeat("x", 100<<10)},
	} {
		r := &wire.Report{}
		for !r.IsFull() {
			r.Add(wire.Status{ID: "i", Status: st})
		}
		b, err := wire.Encode(wire.Frame{Seq: 1, Report: r})
		if err != nil || len(r.Items) >= 100 || len(b) > wire.MaxReport/2 || bytes.Count(b, []byte(",")) > 50_000 {
			t.Errorf("%s: %d instances in %d bytes (%v)", name, len(r.Items), len(b), err)
		}
	}
}
