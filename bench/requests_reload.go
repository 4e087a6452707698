package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// reloads does the same rolling update without Mariposa: a script starts a new process, waits until
// it listens, writes the configuration of HAProxy, reloads it, and stops the old process.
func (s *requestsRun) reloads(ctx context.Context) (Traffic, error) {
	port, err := freeLoopbackPort()
	if err != nil {
		return Traffic{}, err
	}
	p := &plainProxy{run: s, port: port, file: filepath.Join(s.Dir, "plain.cfg"), pid: filepath.Join(s.Dir, "plain.pid")}
	defer p.end()
	for range s.Instances {
		if err := p.add(ctx); err != nil {
			return Traffic{}, err
		}
	}
	if err := p.load(ctx); err != nil {
		return Traffic{}, err
	}
	return s.measure(ctx, port, func(ctx context.Context) error {
		for range s.Instances {
			if err := p.add(ctx); err != nil {
				return err
			}
			old := p.servers[0]
			p.servers = p.servers[1:]
			if err := p.load(ctx); err != nil {
				return err
			}
			_ = old.process.cmd.Process.Signal(syscall.SIGTERM) // it ends by itself
		}
		return nil
	})
}

// plainProxy is an HAProxy that is changed by reloads.
type plainProxy struct {
	run       *requestsRun
	port      int
	file, pid string
	servers   []plainServer
}

type plainServer struct {
	port    int
	process *agentProcess
}

// add starts another process, and waits until it listens.
func (p *plainProxy) add(ctx context.Context) error {
	port, err := freeLoopbackPort()
	if err != nil {
		return err
	}
	process, err := startAgent(p.run.command(ctx, []string{"PORT=" + strconv.Itoa(port)}, "bench", "respond"))
	if err != nil {
		return err
	}
	p.servers, p.run.backends = append(p.servers, plainServer{port, process}), append(p.run.backends, process)
	return p.run.await(ctx, "a process listens", func() (bool, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			return false, process.err()
		}
		return true, c.Close()
	})
}

// load writes the configuration, and starts HAProxy or reloads it.
func (p *plainProxy) load(ctx context.Context) error {
	var b strings.Builder
	fmt.Fprintf(&b, "global\n    pidfile %s\n    hard-stop-after 30s\ndefaults\n    mode http\n    timeout connect 3s\n    timeout client 1m\n    timeout server 1m\n", p.pid)
	fmt.Fprintf(&b, "frontend in\n    bind 127.0.0.1:%d\n    default_backend web\nbackend web\n    balance roundrobin\n", p.port)
	for i, s := range p.servers {
		fmt.Fprintf(&b, "    server s%d 127.0.0.1:%d\n", i, s.port)
	}
	if err := os.WriteFile(p.file, []byte(b.String()), 0o600); err != nil {
		return err
	}
	args := []string{"-D", "-f", p.file}
	if old, err := os.ReadFile(p.pid); err == nil {
		args = append(append(args, "-sf"), strings.Fields(string(old))...)
	}
	if out, err := exec.CommandContext(ctx, "haproxy", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (p *plainProxy) end() {
	pids, _ := os.ReadFile(p.pid) // it may not have started
	for _, text := range strings.Fields(string(pids)) {
		if pid, _ := strconv.Atoi(text); pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
