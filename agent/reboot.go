package agent

import (
	"context"
	"log/slog"
	"time"

	"mariposa/wire"
)

// announceTimeout is how long the announcement of a reboot may delay the end of the agent.
const announceTimeout = 5 * time.Second

// endWith calls end when the context ends. If the machine is shutting down, the control
// plane learns it before.
func (n *Node) endWith(ctx context.Context, ended <-chan struct{}, end context.CancelCauseFunc) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	if n.Reboots != nil && n.Reboots() {
		slog.Info("the machine is shutting down; telling the control plane", "node", n.Hello.Name)
		left := make(chan struct{})
		n.post(func() { n.announceReboot(left) })
		select {
		case <-left:
		case <-ended:
		case <-time.After(announceTimeout):
			slog.Warn("cannot tell the control plane that the machine is shutting down", "node", n.Hello.Name)
		}
	}
	end(context.Cause(ctx))
}

// announceReboot sends the last frame of the session. The control plane closes the
// connection once it has read it.
func (n *Node) announceReboot(left chan struct{}) {
	n.left = left
	if n.out == nil || !n.welcomed {
		n.leftIfAnnounced()
		return
	}
	n.send(wire.Frame{Bye: &wire.Bye{Reason: "the machine is shutting down", Reboot: true}})
	n.welcomed, n.complete = false, false // nothing may follow
	n.stopBeat()
}

func (n *Node) leftIfAnnounced() {
	if n.left != nil {
		close(n.left)
		n.left = make(chan struct{}) // never closed
	}
}
