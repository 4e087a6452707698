package simulate

import (
	"fmt"
	"strings"

	"mariposa/wire"
)

// describe summarizes a frame.
func describe(f wire.Frame) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d ", f.Seq)
	switch {
	case f.Hello != nil:
		b.WriteString("hello")
	case f.Welcome != nil:
		fmt.Fprintf(&b, "welcome, epoch %d", f.Welcome.Epoch)
	case f.Assign != nil:
		b.WriteString("assign")
		if f.Assign.Snapshot {
			b.WriteString(" (snapshot)")
		}
		for _, it := range f.Assign.Items {
			fmt.Fprintf(&b, " %s/%d=%s", tail(it.ID), it.Generation, it.Goal)
		}
	case f.Provide != nil:
		b.WriteString("provide")
		if f.Provide.Snapshot {
			b.WriteString(" (snapshot)")
		}
		for _, it := range f.Provide.Items {
			fmt.Fprintf(&b, " %s=%s", tail(it.ID), it.Goal)
		}
	case f.Report != nil:
		b.WriteString("report")
		for _, it := range f.Report.Provided {
			fmt.Fprintf(&b, " %s %s", it.Kind, tail(it.ID)+"="+string(it.State))
		}
		for _, it := range f.Report.Items {
			fmt.Fprintf(&b, " %s/%d=%s", tail(it.ID), it.Status.Generation, it.Status.State)
		}
	case f.Heartbeat != nil:
		fmt.Fprintf(&b, "beat after %d", f.Heartbeat.Sent)
	case f.Bye != nil:
		b.WriteString("bye: " + f.Bye.Reason)
	}
	return b.String()
}

func tail(id string) string { return id[max(0, len(id)-4):] }

// noteFrame records a frame. Heartbeats go only into the digest.
func (w *World) noteFrame(f wire.Frame, format string, args ...any) {
	if line := w.digestOnly(format, args...); f.Heartbeat == nil {
		w.record(line)
	}
}
