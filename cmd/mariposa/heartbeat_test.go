package main_test

import (
	"context"
	"testing"
	"time"

	"mariposa"
)

// heartbeatWatch checks what replicas say about the last heartbeats of nodes that are
// alive all the time.
type heartbeatWatch struct {
	c      *cluster
	newest map[int]map[string]time.Time // by replica and node
}

// follow checks some replicas again and again until a time. Agents send a heartbeat every
// 5 s, or try to connect at least every 7.5 s.
func (w *heartbeatWatch) follow(during string, until time.Time, replicas ...int) {
	const limit = 20 * time.Second
	t := w.c.t
	t.Helper()
	asked, began := 0, time.Now()
	defer func() { t.Logf("%s, %d answers in %s", during, asked, time.Since(began)) }()
	w.c.await("it is "+until.String(), func() bool {
		for _, i := range replicas {
			w.c.via(i)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			all, err := w.c.Nodes(ctx)
			cancel()
			if err != nil {
				continue // it cannot be asked now
			}
			asked++
			if w.newest[i] == nil {
				w.newest[i] = map[string]time.Time{}
			}
			for _, n := range all.Nodes {
				switch {
				case n.Status != mariposa.NodeRunning:
				case n.LastHeartbeat == nil:
					t.Fatalf("%s, replica %d does not know when %s was last heard from", during, i, n.Name)
				case n.LastHeartbeat.Before(w.newest[i][n.Name].Add(-2 * time.Second)): // the machine's clock may be set back a little
					t.Fatalf("%s, replica %d says that %s was last heard from at %s, and before, at %s", during, i, n.Name, n.LastHeartbeat, w.newest[i][n.Name])
				case time.Since(*n.LastHeartbeat) > limit:
					t.Fatalf("%s, replica %d says that %s was last heard from %s ago", during, i, n.Name, time.Since(*n.LastHeartbeat))
				default:
					w.newest[i][n.Name] = *n.LastHeartbeat
				}
			}
		}
		return time.Now().After(until)
	})
}

// Each replica knows when nodes were last heard from, also those of a replica that was just
// killed, and while the database does not answer.
func TestLastHeartbeatsStayRightWhileReplicasAndTheDatabaseFail(t *testing.T) {
	t.Parallel()
	c, cables := cabled(t, 3)
	names := c.selves()
	for i, node := range []string{"a", "b", "d"} {
		c.addAgent(node, i, "--dummy-nodes", "1")
		c.await("the node is connected", func() bool { return c.replicaOf(node+"-1") == names[i] })
	}
	joined := time.Now()
	w := &heartbeatWatch{c: c, newest: map[int]map[string]time.Time{}}
	w.follow("before anything happens", joined.Add(20*time.Second), 0) // replica 1 is not asked
	end(c.replicas[2].cmd)
	w.follow("after a replica was killed", time.Now().Add(18*time.Second), 1, 0)
	for _, cable := range cables {
		cable.setHung(true)
	}
	w.follow("without the database", time.Now().Add(25*time.Second), 0, 1)
	for _, cable := range cables {
		cable.setHung(false)
	}
	w.follow("with the database", time.Now().Add(10*time.Second), 0, 1)
	c.await("all nodes run", func() bool { return len(c.nodeStates()) == 3 && isAll(c.nodeStates(), mariposa.NodeRunning) })
}
