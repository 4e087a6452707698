package kvm

import (
	"io"
	"net"
	"sync"
	"time"

	"mariposa/driver/logfile"
)

// console is the serial console of a machine. What the machine writes goes to the log and to
// everyone who is attached; what they write goes to the machine.
type console struct {
	conn   net.Conn
	log    *logfile.Writer
	copied chan struct{} // closed when everything was copied

	patience time.Duration // how long the machine may take to read
	typing   sync.Mutex    // held while something is written to the machine

	mu       sync.Mutex
	attached map[net.Conn]*attachment
}

// attachment is what a client has yet to read. The mutex of the console guards it.
type attachment struct {
	pending []byte
	over    bool          // nothing follows
	news    chan struct{} // says that there is more
}

// backlog is how many bytes one who is attached may be behind before it is detached.
const backlog = 1 << 20

func newConsole(conn net.Conn, log *logfile.Writer) *console {
	c := &console{conn: conn, log: log, patience: writeTimeout, copied: make(chan struct{}), attached: map[net.Conn]*attachment{}}
	go c.copy() // ends with QEMU
	return c
}

func (c *console) copy() {
	defer close(c.copied)
	out := &logfile.LineEnds{To: c.log}
	buffer := make([]byte, 32<<10)
	for {
		n, err := c.conn.Read(buffer)
		_, _ = out.Write(buffer[:n]) // never fails
		c.broadcast(buffer[:n])
		if err != nil {
			out.Flush()
			return
		}
	}
}

// broadcast sends output to everyone who is attached. One who does not read is detached, so that
// nobody holds up the machine.
func (c *console) broadcast(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, a := range c.attached {
		if len(a.pending)+len(p) > backlog {
			_ = conn.Close() // ends attach
			c.detach(conn)
			continue
		}
		a.pending = append(a.pending, p...)
		a.notify()
	}
}

func (a *attachment) notify() {
	select {
	case a.news <- struct{}{}:
	default: // it has been told
	}
}

// detach lets the last output go to a client, and no more. The caller holds the mutex.
func (c *console) detach(client net.Conn) {
	if a := c.attached[client]; a != nil {
		delete(c.attached, client)
		a.over = true
		a.notify()
	}
}

// attach connects a client to the console until it leaves, or the machine ends.
func (c *console) attach(client net.Conn) {
	a := &attachment{news: make(chan struct{}, 1)}
	c.mu.Lock()
	c.attached[client] = a
	c.mu.Unlock()
	var writer sync.WaitGroup
	writer.Go(func() {
		for over := false; !over; {
			<-a.news
			c.mu.Lock()
			p := a.pending
			a.pending, over = nil, a.over
			c.mu.Unlock()
			_ = client.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := client.Write(p); err != nil {
				_ = client.Close() // ends the copy below
			}
		}
		_ = client.Close() // the same
	})
	_, _ = io.Copy(&keyboard{c: c}, client) // ends with either
	c.mu.Lock()
	c.detach(client)
	c.mu.Unlock()
	writer.Wait()
}

// writeTimeout is how long a client may take to read, and a machine to take what is typed.
const writeTimeout = 10 * time.Second

// keyboard writes to the machine. A machine that does not read its console, because it has no
// program for that, or hangs, must not keep a client whose connection has ended, nor other clients:
// what it does not take in time is lost, as on a real line, and the client is detached.
type keyboard struct{ c *console }

func (k *keyboard) Write(p []byte) (int, error) {
	k.c.typing.Lock()
	defer k.c.typing.Unlock()
	_ = k.c.conn.SetWriteDeadline(time.Now().Add(k.c.patience))
	return k.c.conn.Write(p)
}

// finish copies what is left, and detaches everyone.
func (c *console) finish() {
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Second)) // QEMU has ended, so there is an end
	<-c.copied
	_ = c.conn.Close() // nothing is left
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.attached {
		c.detach(conn)
	}
}
