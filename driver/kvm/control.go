package kvm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"mariposa/driver"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// The agent asks the supervisor of a machine over a socket in its directory: one order for each
// connection, a line of JSON, and an answer of the same form.

// order is what a supervisor is to do.
type order struct {
	Do   string `json:"do"`
	Name string `json:"name,omitempty"` // of a snapshot or a disk
	Size int64  `json:"size,omitempty"` // of a disk
}

// The orders.
const (
	orderPowerDown = "power-down"
	orderConsole   = "console" // the connection becomes the console
	orderWatch     = "watch"   // each byte that follows means that the state has changed
	orderStatus    = "status"
	orderMeasure   = "measure"
	orderSnapshot  = "snapshot"
	orderRestore   = "restore"
	orderForget    = "forget" // a snapshot
	orderGrow      = "grow"   // a disk
)

// answer is what became of an order.
type answer struct {
	Error       string `json:"error,omitempty"`
	Unsupported bool   `json:"unsupported,omitempty"`
	DiskRead    int64  `json:"disk_read,omitempty"`
	DiskWritten int64  `json:"disk_written,omitempty"`
	Paused      string `json:"paused,omitempty"` // why the machine is paused
}

// maxOrder bounds an order or an answer.
const maxOrder = 64 << 10

// inDir returns a path of a socket: those of sockets are short, and a directory may be deep.
func inDir(dir *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name)
}

func listenControl(dir string) (net.Listener, error) {
	if err := statefile.IgnoreMissing(os.Remove(filepath.Join(dir, controlFile))); err != nil { // of the last run
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() // the socket is open
	l, err := net.Listen("unix", inDir(d, controlFile))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its path is no longer valid
	return l, os.Chmod(filepath.Join(dir, controlFile), 0o600)
}

// serveControl carries out orders until the socket is closed.
func (s *supervisor) serveControl() {
	for {
		conn, err := s.control.Accept()
		if err != nil {
			return
		}
		go s.serveOrder(conn) // ends with the connection
	}
}

func (s *supervisor) serveOrder(conn net.Conn) {
	defer conn.Close() // the answer was sent
	_ = conn.SetReadDeadline(time.Now().Add(supervise.Timeout))
	lines := bufio.NewReaderSize(io.LimitReader(conn, maxOrder), maxOrder)
	line, err := lines.ReadBytes('\n')
	var o order
	if err != nil || json.Unmarshal(line, &o) != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	reply := func(a answer) { _ = json.NewEncoder(conn).Encode(a) } // fails if the agent was killed
	if o.Do == orderConsole {
		reply(answer{})
		s.console.attach(conn)
		return
	}
	if o.Do == orderWatch {
		reply(answer{})
		s.addWatcher(conn)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // the agent has given up
		_, _ = conn.Read(make([]byte, 1))
		cancel()
	}()
	reply(s.carryOut(ctx, o))
}

func (s *supervisor) carryOut(ctx context.Context, o order) (a answer) {
	var err error
	switch o.Do {
	case orderPowerDown:
		err = s.powerDown()
	case orderStatus:
		s.mu.Lock()
		a.Paused = s.pause.reason
		s.mu.Unlock()
	case orderMeasure:
		a.DiskRead, a.DiskWritten, err = s.measure(ctx)
	case orderSnapshot:
		err = s.snapshot(ctx, saveSnapshot, o.Name)
	case orderRestore:
		err = s.snapshot(ctx, loadSnapshot, o.Name)
	case orderForget:
		err = s.snapshot(ctx, deleteSnapshot, o.Name)
	case orderGrow:
		err = s.qmp.Run(ctx, "block_resize", map[string]any{"node-name": o.Name, "size": o.Size}, nil)
	default: // of a newer agent
		err, a.Unsupported = fmt.Errorf("the supervisor of the machine does not know %q: restart the instance", o.Do), true
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// measure returns how much the machine has read from its disks and written to them.
func (s *supervisor) measure(ctx context.Context) (read, written int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, supervise.Timeout)
	defer cancel()
	var all []struct {
		Stats struct {
			Read    int64 `json:"rd_bytes"`
			Written int64 `json:"wr_bytes"`
		} `json:"stats"`
	}
	err = s.qmp.Run(ctx, "query-blockstats", nil, &all)
	for _, one := range all {
		read, written = read+one.Stats.Read, written+one.Stats.Written
	}
	return read, written, err
}

// dial sends an order to the supervisor of an instance. The connection remains open after its
// answer; out is where the rest of it is read.
func dial(ctx context.Context, dir string, o order) (conn net.Conn, out *bufio.Reader, a answer, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, a, err
	}
	defer d.Close() // the connection is open
	var dialer net.Dialer
	if conn, err = dialer.DialContext(ctx, "unix", inDir(d, controlFile)); err != nil {
		return nil, nil, a, fmt.Errorf("its supervisor does not answer: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	out = bufio.NewReader(conn)
	b, err := json.Marshal(o)
	if err == nil {
		_, err = conn.Write(append(b, '\n'))
	}
	var line []byte
	if err == nil {
		line, err = out.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if !stop() && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		_ = conn.Close() // the error is returned
		return nil, nil, a, err
	}
	return conn, out, a, nil
}

// attached is a connection to a console.
type attached struct {
	net.Conn
	out *bufio.Reader // of which a part may have been read
}

func (a *attached) Read(p []byte) (int, error) { return a.out.Read(p) }

// Console attaches to the serial console of a running instance.
func (d *Driver) Console(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	e, _, leave, err := d.kept(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	d.roster.Lock()
	running := e.Observed.Running
	d.roster.Unlock()
	if !running {
		return nil, driver.ErrNotFound
	}
	conn, out, _, err := dial(ctx, e.Dir, order{Do: orderConsole})
	if err != nil {
		return nil, err
	}
	return &attached{conn, out}, nil
}

// tell sends an order and waits until it is carried out.
func tell(ctx context.Context, dir string, o order) (answer, error) {
	conn, _, a, err := dial(ctx, dir, o)
	if err == nil {
		_ = conn.Close() // the answer was read
	}
	return a, err
}
