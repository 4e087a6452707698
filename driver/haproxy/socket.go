package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/balance"
)

// socket is the control socket of an HAProxy.
type socket struct{ network, address string }

const (
	askTimeout = 5 * time.Second
	maxAnswer  = 4 << 20
)

// ask sends one command, and returns the answer.
func (s socket) ask(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, s.network, s.address)
	if err != nil {
		return "", fmt.Errorf("its control socket cannot be reached: %w", causeOf(err))
	}
	defer c.Close() // everything was read
	if at, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(at) // a connection without deadlines does not exist
	}
	if _, err := io.WriteString(c, command+"\n"); err != nil {
		return "", fmt.Errorf("it does not take commands: %w", causeOf(err))
	}
	b, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("it does not answer: %w", causeOf(err))
	}
	return string(b), nil
}

// causeOf returns why a connection failed, without paths of the node: projects see it.
func causeOf(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errTooLong
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

var errTooLong = errors.New("it takes too long")

// do sends a command that changes something. An answer that is not a confirmation is a refusal.
func (s socket) do(ctx context.Context, command string) error {
	answer, err := s.ask(ctx, command)
	if err != nil {
		return err
	}
	switch answer = strings.TrimSpace(answer); answer {
	case "", "New server registered.", "Server deleted.", "no need to change the addr", "nothing changed":
		return nil
	}
	if strings.HasPrefix(answer, "IP changed") || strings.HasPrefix(answer, "port changed") || strings.HasPrefix(answer, "no need to change") {
		return nil
	}
	return refusal(strings.Join(strings.Fields(answer), " "))
}

// refusal is the answer of a balancer that did not carry out a command.
type refusal string

func (r refusal) Error() string { return string(r) }

// counters are what a server has done.
type counters struct {
	responses mariposa.Responses
	failures  int64 // connections to it that could not be made
}

// servers returns the servers of some backends, with their counters. It asks for all backends at
// once if there are several: a balancer may have a hundred.
func (s socket) servers(ctx context.Context, backends []string) ([]balance.Server, map[balance.Key]counters, error) {
	only, which := "", "-1"
	if len(backends) == 1 {
		only, which = " "+backends[0], backends[0]
	}
	states, err := s.ask(ctx, "show servers state"+only)
	if err != nil {
		return nil, nil, err
	}
	all, err := parseStates(strings.Join(backends, ", "), states)
	if err != nil {
		return nil, nil, err
	}
	stats, err := s.ask(ctx, "show stat "+which+" 4 -1")
	if err != nil {
		return nil, nil, err
	}
	open, counts, err := parseStats(stats)
	if err != nil {
		return nil, nil, err
	}
	all = slices.DeleteFunc(all, func(s balance.Server) bool { return !slices.Contains(backends, s.Backend) })
	for i := range all {
		all[i].Connections = open[balance.Key{Backend: all[i].Backend, Instance: all[i].Name}]
	}
	return all, counts, nil
}

// The administrative states of a server, as bits.
const (
	forcedMaint = 0x01
	inherited   = 0x02 // maintenance of a server that it tracks
	configMaint = 0x04
	forcedDrain = 0x08
	anyDrain    = 0x18
)

// The operational states of a server that gets no connections.
const (
	opStopped  = "0"
	opStopping = "3"
)

// parseStates reads the answer to "show servers state".
func parseStates(backend, text string) ([]balance.Server, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 2 || strings.TrimSpace(lines[0]) != "1" {
		return nil, fmt.Errorf("the balancer has no backend %s, or does not say what is in it: %q", backend, firstLine(text))
	}
	at := columns(strings.Fields(strings.TrimPrefix(lines[1], "#")))
	var all []balance.Server
	for _, line := range lines[2:] {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		admin, err1 := strconv.Atoi(at.field(f, "srv_admin_state"))
		weight, err2 := strconv.Atoi(at.field(f, "srv_uweight"))
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("the balancer describes a server in an unknown way: %q", line)
		}
		s := balance.Server{
			Backend: at.field(f, "be_name"), Name: at.field(f, "srv_name"), Weight: weight, State: balance.Ready,
			Address: net.JoinHostPort(at.field(f, "srv_addr"), at.field(f, "srv_port")),
		}
		switch {
		case admin&(forcedMaint|inherited|configMaint) != 0:
			s.State = balance.Maint
		case admin&anyDrain != 0:
			s.State = balance.Drain
		case at.field(f, "srv_op_state") == opStopped || at.field(f, "srv_op_state") == opStopping:
			s.State = balance.Stopped
		}
		all = append(all, s)
	}
	return all, nil
}

// parseStats reads the answer to "show stat": the connections and the responses of each server.
func parseStats(text string) (map[balance.Key]int, map[balance.Key]counters, error) {
	open, by := map[balance.Key]int{}, map[balance.Key]counters{}
	lines := strings.Split(strings.TrimPrefix(text, "# "), "\n")
	at := columns(strings.Split(lines[0], ","))
	if at["pxname"] != 0 || len(at) < 10 {
		return nil, nil, fmt.Errorf("the balancer does not say what its servers do: %q", firstLine(text))
	}
	for _, line := range lines[1:] {
		f := strings.Split(line, ",")
		if len(f) < 10 {
			continue
		}
		k := balance.Key{Backend: at.field(f, "pxname"), Instance: at.field(f, "svname")}
		number := func(name string) int64 {
			n, _ := strconv.ParseInt(at.field(f, name), 10, 64) // empty where it does not apply
			return n
		}
		open[k] = int(number("scur") + number("qcur"))
		by[k] = counters{mariposa.Responses{
			Informational: number("hrsp_1xx"), Success: number("hrsp_2xx"), Redirect: number("hrsp_3xx"),
			ClientError: number("hrsp_4xx"), ServerError: number("hrsp_5xx"), Other: number("hrsp_other"),
		}, number("econ") + number("wretr") + number("wredis")}
	}
	return open, by, nil
}

// header maps the names of columns to their positions.
type header map[string]int

func columns(names []string) header {
	h := header{}
	for i, name := range names {
		if _, twice := h[name]; !twice {
			h[name] = i
		}
	}
	return h
}

func (h header) field(f []string, name string) string {
	if i, ok := h[name]; ok && i < len(f) {
		return f[i]
	}
	return ""
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line[:min(len(line), 200)]
}
