package main_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// The agent of one of two nodes hangs. Whatever asks it says within seconds that the node
// does not answer; logs of the other node are printed; followed logs go on once it answers.
func TestANodeThatHangsIsNamed(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data, "MARIPOSA_PROJECT=shop"}
	join := []string{"MARIPOSA_JOIN=" + a.joinToken()}
	agent := func(name string) func(syscall.Signal) {
		cmd := a.launch(join, "agent", "--server", a.url, "--data", filepath.Join(a.dir, name), "--name", name)
		a.awaitNode(name, mariposa.NodeRunning)
		return func(s syscall.Signal) { t.Helper(); must(t, cmd.Process.Signal(s)) }
	}
	hang := agent("n1")
	agent("n2")
	t.Cleanup(func() { hang(syscall.SIGCONT) })
	a.ok("project", "create", "shop", "--wait", "-m", fileOf(t, `
services:
  web: {compute_type: process, scale: 2, command: [sh, -c, 'echo hello; exec sleep 100000'], update: {min_healthy: 0}}
`))
	on := map[string]contract.Instance{}
	for _, i := range a.instances("shop") {
		on[i.NodeName] = i
	}
	if len(on) != 2 {
		t.Fatalf("the instances are on %v", on)
	}
	hang(syscall.SIGSTOP)
	var followed, one lockedBuffer
	for out, args := range map[*lockedBuffer][]string{&followed: {"logs", "-f"}, &one: {"instance", "logs", "-f", on["n1"].Name}} {
		cmd := launch(t, program(context.Background(), a.dir, append([]string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}, a.env...), args...), out)
		t.Cleanup(func() { end(cmd) })
	}
	var all sync.WaitGroup
	for _, args := range [][]string{
		{"logs"}, {"logs", "-t"}, {"instance", "logs", on["n1"].Name}, {"instance", "logs", "--json", on["n1"].Name}, {"instance", "exec", on["n1"].Name, "--", "true"},
	} {
		all.Go(func() {
			out, errs, code := a.mariposa("", args...)
			isOfAll := args[0] == "logs"
			if code != 1 || strings.Contains(out, on["n2"].Name) != isOfAll || strings.Contains(out, on["n1"].Name) || !strings.Contains(errs, "node n1") ||
				strings.Contains(errs, "deadline") || strings.Contains(errs, "i/o") || strings.Contains(errs, "output is incomplete: 1 log") != isOfAll {
				t.Errorf("%v: exit %d\n%s%s", args, code, out, errs)
			}
		})
	}
	all.Wait()
	said := "the log cannot be read (cannot read the log of " + on["n1"].Name + ": "
	a.await("followers say so", func() bool { return strings.Contains(followed.String(), said) && strings.Contains(one.String(), said) })
	if text := followed.String(); !strings.Contains(text, on["n2"].Name+" | hello") || strings.Contains(text, on["n1"].Name+" | hello") {
		t.Errorf("they follow\n%s", text)
	}
	hang(syscall.SIGCONT)
	a.await("followers go on", func() bool {
		return strings.Contains(followed.String(), on["n1"].Name+": the log can be read again") && strings.Contains(followed.String(), on["n1"].Name+" | hello") &&
			strings.Contains(one.String(), "the log can be read again\nhello\n")
	})
}
