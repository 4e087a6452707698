package mariposa_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// This file enforces the architecture: which room (top-level directory) may import which.
// It parses the whole module and reports each forbidden import with the reason. The rules
// do not apply to tests, which may import anything.

const module = "mariposa"

// The nouns are in the root directory, so their room has no directory name.
const nouns = "nouns"

// floors lists the layers of the architecture, lowest first. A room may import rooms on
// lower floors. Every room must be listed; rooms that do not exist yet may be listed too.
var floors = []struct {
	rooms []string
	why   string
}{
	{[]string{nouns}, "every room uses the nouns, so they import no other room"},
	{[]string{"reason"}, "a reason becomes a sentence from the nouns alone, so that API, CLI and web page show the same text"},
	{[]string{"contract"}, "API documents contain nouns and no implementation details"},
	{[]string{"manifest"}, "a manifest is parsed and checked with the nouns alone"},
	{[]string{"compose"}, "a Compose file becomes a manifest, which is checked by the same rules as any other"},
	{[]string{"converge", "queue", "place", "pace", "balance"}, "pure rooms decide from their arguments alone, so that every decision can be replayed"},
	{[]string{"clock", "mailbox"}, "clocks and mailboxes wake actors and know nothing about them"},
	{[]string{"listener"}, "connections are accepted and limited before the peer is authenticated"},
	{[]string{"store", "driver", "wire"}, "infrastructure stores, runs and transports; it makes no decisions"},
	{[]string{"seal"}, "secrets are encrypted and decrypted in one place, next to the keys"},
	{[]string{"relay"}, "replicas connect to each other by the keys and leases they share, whatever they ask"},
	{[]string{"picture"}, "all actors and interfaces share one copy of the store, so it is below them"},
	{[]string{"engine", "fleet", "agent", "health", "discover", "auth", "history"}, "actors use the infrastructure and do not know the interfaces"},
	{[]string{"change"}, "a request has the same effect through every interface, so changes know none of them"},
	{[]string{"client"}, "the client knows only the HTTP contract of the server"},
	{[]string{"api", "web", "cli", "healthagent"}, "interfaces show what the actors do; nothing below depends on them"},
	{[]string{"assembly"}, "the system is assembled once, for the binary, the benchmark and the tests"},
	{[]string{"bench", "simulate"}, "they start the whole system, so they may import everything"},
	{[]string{"cmd"}, "the binary may import everything; nothing imports it"},
}

// guests are directories that are not part of the system. No room may import them.
var guests = map[string]string{
	"examples":  "an example is what a user would write, without our packages",
	"leaktest":  "only tests check for leaked goroutines",
	"packaging": "files for distributions, and their tests",
	"scripts":   "scripts are tools for the build, not part of the system",
}

// sideways lists the allowed imports between rooms on the same floor.
var sideways = map[[2]string]string{
	{"agent", "health"}:   "the agent runs the same checker as the stand-alone health agent",
	{"agent", "discover"}: "the agent runs the DNS server of its node",
	{"fleet", "discover"}: "nodes are told the names that the control plane answers",
}

// narrow lists rooms that may import less than their floor allows: of this module, only
// these rooms.
var narrow = map[string]struct {
	only []string
	why  string
}{
	"client": {
		[]string{nouns, "contract", "manifest", "wire"},
		"the client is for outside programs: it knows the contract, not the implementation",
	},
	"cli": {
		[]string{nouns, "reason", "contract", "manifest", "compose", "client", "clock"},
		"the terminal talks to the server only through the client, so that nothing works here that a user's program cannot do",
	},
}

// callers lists rooms that only some rooms may import.
var callers = map[string]struct {
	only []string
	why  string
}{
	"compose": {
		[]string{"cli", "cmd"},
		"Compose files are on the user's machine, so they are translated there; the system knows only manifests",
	},
	"contract": {
		[]string{"change", "api", "client", "cli", "healthagent", "bench", "simulate", "assembly", "cmd"},
		"only interfaces use API documents; actors use nouns. A change stores its response in its own commit, so it needs them too",
	},
	"reason": {
		[]string{"change", "api", "web", "cli", "bench", "simulate", "assembly", "cmd", "engine"},
		"sentences are for people; decisions use codes. The engine and changes write sentences to the audit log",
	},
	"client": {
		[]string{"cli", "bench", "simulate", "assembly", "cmd"},
		"inside the system, rooms call each other directly; nothing else uses HTTP",
	},
}

// pureRooms get all input as arguments and return what is to be done.
var pureRooms = []string{"reason", "manifest", "compose", "converge", "queue", "place", "pace", "balance"}

// forbidden are the packages that no pure room may import. An entry that ends in "/"
// matches everything under it.
var forbidden = []struct{ path, why string }{
	{module + "/store", "a pure room gets its view as an argument; with a store, the plan would depend on when it runs"},
	{"net", "the network is not an argument"},
	{"net/", "the network is not an argument"},
	{"os", "files and the environment are not arguments"},
	{"os/", "files, processes and signals are not arguments"},
	{"io/ioutil", "files are not arguments"},
	{"syscall", "the machine is not an argument"},
	{"database/sql", "a pure room gets its view as an argument"},
	{"math/rand", "jitter is a hash of id and attempt, so that the same input gives the same plan"},
	{"math/rand/", "jitter is a hash of id and attempt, so that the same input gives the same plan"},
	{"crypto/rand", "the same input gives the same plan"},
	{"log", "a pure room returns its messages as part of the result"},
	{"log/", "a pure room returns its messages as part of the result"},
	{module + "/clock", "the time is an argument"},
	{module + "/mailbox", "what has happened is an argument"},
}

// harmless are packages under a forbidden path that only handle values.
var harmless = []string{"net/netip", "net/url"}

// impure are functions that no pure room may use, by package.
var impure = map[string]struct {
	names []string
	why   string
}{
	"time": {
		[]string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"},
		"the time is an argument; to wait, return a wake-up time",
	},
	"github.com/google/uuid": {
		[]string{"New", "NewString", "NewRandom", "NewUUID", "NewV6", "NewV7"},
		"new ids are random; the code that executes the plan creates them",
	},
}

// shapeless are package names that do not describe a purpose.
var shapeless = []string{"util", "utils", "common", "helpers", "misc"}

const maxLines = 600

func TestEveryArrowPointsDown(t *testing.T) {
	t.Parallel()
	report(t, readTree(t, os.DirFS(".")), checkArrows)
}

func TestPureRoomsArePure(t *testing.T) {
	t.Parallel()
	report(t, readTree(t, os.DirFS(".")), checkPurity)
}

func TestEveryPackageSaysWhatItOwns(t *testing.T) {
	t.Parallel()
	report(t, readTree(t, os.DirFS(".")), checkComments)
}

func TestNoFileIsTooLong(t *testing.T) {
	t.Parallel()
	report(t, readTree(t, os.DirFS(".")), checkLengths)
}

func report(t *testing.T, tree []source, check func([]source) []string) {
	t.Helper()
	for _, complaint := range check(tree) {
		t.Error(complaint)
	}
}

// source is a parsed Go file that is not a test.
type source struct {
	path      string // slash-separated, relative to the root of the module
	file      *ast.File
	fset      *token.FileSet
	lines     int
	generated bool
}

func (s source) room() string { return roomOf(path.Dir(s.path)) }

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

// arrow is an import: its position and the imported path.
type arrow struct {
	at, path string
	spec     *ast.ImportSpec
}

func (s source) arrows() []arrow {
	var all []arrow
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // cannot happen: the parser accepts only valid strings
		}
		all = append(all, arrow{at: s.at(spec), path: p, spec: spec})
	}
	return all
}

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// readTree parses every Go file of the module except tests, testdata, hidden directories
// and nested modules.
func readTree(t *testing.T, tree fs.FS) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	err := fs.WalkDir(tree, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p == "." {
				return nil
			}
			_, noModule := fs.Stat(tree, path.Join(p, "go.mod"))
			if name[0] == '.' || name[0] == '_' || name == "testdata" || name == "vendor" || noModule == nil {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(tree, p)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{
			path:      p,
			file:      file,
			fset:      fset,
			lines:     bytes.Count(text, []byte("\n")),
			generated: generatedLine.Match(text),
		})
		return nil
	})
	if err != nil {
		t.Fatalf("reading the tree: %v", err)
	}
	if len(all) == 0 {
		t.Fatal("found no Go files: this test reads the wrong directory")
	}
	return all
}

// roomOf returns the room of a directory: store/sqlite is part of store.
func roomOf(folder string) string {
	if folder == "." {
		return nouns
	}
	first, _, _ := strings.Cut(folder, "/")
	return first
}

// ours returns the room of an import path, if the path is in this module.
func ours(importPath string) (room string, ok bool) {
	if importPath == module {
		return nouns, true
	}
	folder, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return "", false
	}
	return roomOf(folder), true
}

// floorOf returns the floor of a room, counted from the lowest, or -1.
func floorOf(room string) int {
	for i, floor := range floors {
		if slices.Contains(floor.rooms, room) {
			return i
		}
	}
	return -1
}

func checkArrows(tree []source) []string {
	var complaints []string
	for _, s := range tree {
		from := s.room()
		_, guest := guests[from]
		if !guest && floorOf(from) < 0 {
			complaints = append(complaints, fmt.Sprintf(
				"%s: the room %q is not on the plan; give it a place in floors (floors_test.go), with the reason", s.path, from))
			continue
		}
		if last := path.Base(path.Dir(s.path)); slices.Contains(shapeless, last) {
			complaints = append(complaints, fmt.Sprintf(
				"%s: a package is named for its one duty; %q says nothing and gathers everything", s.path, last))
		}
		for _, a := range s.arrows() {
			if why := whyForbidden(from, a.path); why != "" {
				complaints = append(complaints, fmt.Sprintf("%s: %s must not import %q: %s", a.at, from, a.path, why))
			}
		}
	}
	return complaints
}

// whyForbidden returns why a room must not import a path; empty if it may.
func whyForbidden(from, importPath string) string {
	if from == "cli" && importPath == "net/http" {
		return narrow["cli"].why
	}
	to, isOurs := ours(importPath)
	switch {
	case !isOurs:
		return ""
	case slices.Contains(shapeless, path.Base(importPath)):
		return "a package is named for its one duty"
	case guests[from] != "":
		return guests[from]
	case to == from && from != nouns:
		return "" // packages of one room may import each other
	case guests[to] != "":
		return guests[to]
	case floorOf(to) < 0:
		return fmt.Sprintf("the room %q is not on the plan (floors_test.go)", to)
	}
	if n, ok := narrow[from]; ok && !slices.Contains(n.only, to) {
		return n.why
	}
	if c, ok := callers[to]; ok && !slices.Contains(c.only, from) {
		return c.why
	}
	if floorOf(to) < floorOf(from) || sideways[[2]string{from, to}] != "" {
		return ""
	}
	way := "up"
	if floorOf(to) == floorOf(from) {
		way = "sideways"
	}
	return fmt.Sprintf("the arrow points %s, and %s", way, floors[floorOf(from)].why)
}

func checkPurity(tree []source) []string {
	var complaints []string
	for _, s := range tree {
		if !slices.Contains(pureRooms, s.room()) {
			continue
		}
		names := map[string]string{} // package name in this file -> import path
		for _, a := range s.arrows() {
			if why := whyImpure(a.path); why != "" {
				complaints = append(complaints, fmt.Sprintf("%s: pure room %s must not import %q: %s", a.at, s.room(), a.path, why))
			}
			name := path.Base(a.path)
			if a.spec.Name != nil {
				name = a.spec.Name.Name
			}
			if rule, watched := impure[a.path]; watched && name == "." {
				complaints = append(complaints, fmt.Sprintf("%s: pure room %s must not dot-import %q, which hides its calls: %s", a.at, s.room(), a.path, rule.why))
			}
			names[name] = a.path
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				complaints = append(complaints, fmt.Sprintf(
					"%s: pure room %s must not start a goroutine: its answer would depend on the scheduler", s.at(n), s.room()))
			case *ast.SelectorExpr:
				pkg, ok := n.X.(*ast.Ident)
				if !ok {
					return true
				}
				if rule := impure[names[pkg.Name]]; slices.Contains(rule.names, n.Sel.Name) {
					complaints = append(complaints, fmt.Sprintf(
						"%s: pure room %s must not use %s.%s: %s", s.at(n), s.room(), pkg.Name, n.Sel.Name, rule.why))
				}
			}
			return true
		})
	}
	return complaints
}

func whyImpure(importPath string) string {
	if slices.Contains(harmless, importPath) {
		return ""
	}
	for _, f := range forbidden {
		if importPath == f.path || strings.HasSuffix(f.path, "/") && strings.HasPrefix(importPath, f.path) {
			return f.why
		}
	}
	return ""
}

// checkComments requires that each package has a comment of at least one full sentence.
// The comment of a library must begin with "Package NAME".
func checkComments(tree []source) []string {
	comments := map[string]string{}
	packages := map[string]string{}
	for _, s := range tree {
		if s.generated {
			continue
		}
		folder := path.Dir(s.path)
		packages[folder] = s.file.Name.Name
		comments[folder] += s.file.Doc.Text()
	}
	var complaints []string
	for folder, name := range packages {
		text := strings.TrimSpace(comments[folder])
		first, _, whole := strings.Cut(text+" ", ". ")
		if before, _, found := strings.Cut(text, ".\n"); found {
			first, whole = before, true
		}
		switch {
		case text == "":
			complaints = append(complaints, fmt.Sprintf("%s: package %s has no comment; say what it owns and what it does not know", folder, name))
		case name != "main" && !strings.HasPrefix(text, "Package "+name+" "):
			complaints = append(complaints, fmt.Sprintf("%s: the comment of package %s begins with %q, so that go doc shows it", folder, name, "Package "+name))
		case !whole || len(strings.Fields(first)) < 5:
			complaints = append(complaints, fmt.Sprintf("%s: the comment of package %s is no full sentence: %q", folder, name, text))
		}
	}
	slices.Sort(complaints)
	return complaints
}

func checkLengths(tree []source) []string {
	var complaints []string
	for _, s := range tree {
		if s.lines > maxLines && !s.generated {
			complaints = append(complaints, fmt.Sprintf(
				"%s: %d lines; more than %d usually cover more than one subject; split the file", s.path, s.lines, maxLines))
		}
	}
	return complaints
}

// A check that cannot fail is worthless. Here each check runs on a tree that violates it,
// and must report which import is wrong, where, and why.
func TestTheChecksCanFail(t *testing.T) {
	t.Parallel()
	const good = "// Package p owns one thing and knows no other.\npackage p\n"
	imports := func(path string) string { return good + "import _ \"" + path + "\"\n" }
	long := strings.Repeat("\n", maxLines+1)

	for _, c := range []struct {
		name  string
		path  string
		text  string
		check func([]source) []string
		want  []string // substrings of the only complaint; none: no complaint
	}{
		{"nouns import no other room", "p.go", imports("mariposa/store"), checkArrows, []string{"p.go:3", "nouns", `"mariposa/store"`, "points up", "import no other room"}},
		{"a pure room imports no actor", "converge/p.go", imports("mariposa/engine"), checkArrows, []string{"converge/p.go:3", `"mariposa/engine"`, "points up", "replayed"}},
		{"the store imports no engine", "store/sqlite/p.go", imports("mariposa/engine"), checkArrows, []string{"store/sqlite/p.go:3", `"mariposa/engine"`, "points up"}},
		{"an actor imports no interface", "engine/p.go", imports("mariposa/api"), checkArrows, []string{`"mariposa/api"`, "do not know the interfaces"}},
		{"a driver imports no store", "driver/docker/p.go", imports("mariposa/store"), checkArrows, []string{`"mariposa/store"`, "sideways", "makes no decisions"}},
		{"a driver imports no fleet", "driver/p.go", imports("mariposa/fleet"), checkArrows, []string{`"mariposa/fleet"`, "points up"}},
		{"rooms of one floor keep apart", "converge/p.go", imports("mariposa/place"), checkArrows, []string{`"mariposa/place"`, "sideways"}},
		{"nothing imports the binary", "bench/p.go", imports("mariposa/cmd/mariposa"), checkArrows, []string{`"mariposa/cmd/mariposa"`, "points up"}},
		{"the terminal knows no store", "cli/p.go", imports("mariposa/store"), checkArrows, []string{`"mariposa/store"`, "only through the client"}},
		{"the terminal speaks no HTTP", "cli/p.go", imports("net/http"), checkArrows, []string{`"net/http"`, "only through the client"}},
		{"the client knows no engine", "client/p.go", imports("mariposa/engine"), checkArrows, []string{`"mariposa/engine"`, "contract"}},
		{"a change imports no interface", "change/p.go", imports("mariposa/api"), checkArrows, []string{`"mariposa/api"`, "points up", "through every interface"}},
		{"no actor makes changes for people", "engine/p.go", imports("mariposa/change"), checkArrows, []string{`"mariposa/change"`, "points up"}},
		{"no actor uses API documents", "engine/p.go", imports("mariposa/contract"), checkArrows, []string{`"mariposa/contract"`, "only interfaces use API documents"}},
		{"no actor uses the client", "health/p.go", imports("mariposa/client"), checkArrows, []string{`"mariposa/client"`, "nothing else uses HTTP"}},
		{"an example imports none of our packages", "examples/x/p.go", imports("mariposa"), checkArrows, []string{`"mariposa"`, "without our packages"}},
		{"an unknown room is found", "attic/p.go", good, checkArrows, []string{"attic/p.go", "not on the plan"}},
		{"a meaningless name is found", "store/util/p.go", good, checkArrows, []string{`"util"`, "one duty"}},
		{"a meaningless import is found", "engine/p.go", imports("mariposa/store/common"), checkArrows, []string{`"mariposa/store/common"`, "one duty"}},

		{"a room may import the rooms below", "engine/p.go", imports("mariposa/converge"), checkArrows, nil},
		{"a room may import its own rooms", "store/sqlite/p.go", imports("mariposa/store"), checkArrows, nil},
		{"the agent may run the checker", "agent/p.go", imports("mariposa/health"), checkArrows, nil},
		{"the binary may wire everything", "cmd/mariposa/p.go", imports("mariposa/engine"), checkArrows, nil},
		{"an actor may import the picture", "engine/p.go", imports("mariposa/picture"), checkArrows, nil},
		{"tests may import any room", "converge/p_test.go", imports("mariposa/engine"), checkArrows, nil},

		{"a pure room does not touch the store", "queue/p.go", imports("mariposa/store"), checkPurity, []string{"queue/p.go:3", `"mariposa/store"`, "gets its view as an argument"}},
		{"a pure room does not touch the network", "place/p.go", imports("net/http"), checkPurity, []string{`"net/http"`, "not an argument"}},
		{"a pure room does not touch files", "manifest/p.go", imports("os"), checkPurity, []string{`"os"`, "not arguments"}},
		{"a pure room runs nothing", "pace/p.go", imports("os/exec"), checkPurity, []string{`"os/exec"`, "not arguments"}},
		{"a pure room uses no random numbers", "converge/p.go", imports("math/rand/v2"), checkPurity, []string{`"math/rand/v2"`, "hash of id"}},
		{"a pure room reads no clock", "converge/p.go", good + "import \"time\"\nvar _ = time.Now()\n", checkPurity, []string{"converge/p.go:4", "time.Now", "an argument"}},
		{"a pure room reads no clock under another name", "converge/p.go", good + "import t \"time\"\nvar now = t.Now\n", checkPurity, []string{"converge/p.go:4", "t.Now", "an argument"}},
		{"a pure room does not hide the clock", "converge/p.go", good + "import . \"time\"\nvar _ = Now()\n", checkPurity, []string{"dot-import", `"time"`}},
		{"a pure room does not sleep", "pace/p.go", good + "import \"time\"\nfunc f() { time.Sleep(1) }\n", checkPurity, []string{"time.Sleep"}},
		{"a pure room creates no ids", "converge/p.go", good + "import \"github.com/google/uuid\"\nvar _ = uuid.New()\n", checkPurity, []string{"uuid.New", "random"}},
		{"a pure room starts no goroutine", "converge/p.go", good + "func f() { go f() }\n", checkPurity, []string{"converge/p.go:3", "goroutine"}},
		{"a pure room may calculate with times", "converge/p.go", good + "import \"time\"\nvar _ = time.Second\n", checkPurity, nil},
		{"a pure room may read an address", "manifest/p.go", imports("net/netip"), checkPurity, nil},
		{"an actor may be impure", "engine/p.go", imports("net/http"), checkPurity, nil},

		{"a package without a comment", "store/p.go", "package p\n", checkComments, []string{"store", "no comment"}},
		{"a comment that is not a sentence", "store/p.go", "// Package p stores\npackage p\n", checkComments, []string{"store", "no full sentence"}},
		{"a comment that go doc cannot use", "store/p.go", "// This package stores all there is to store.\npackage p\n", checkComments, []string{"go doc"}},
		{"a valid comment", "store/p.go", good, checkComments, nil},
		{"a comment of a binary", "cmd/x/main.go", "// X does one thing and then ends.\npackage main\n", checkComments, nil},

		{"a file that is too long", "store/p.go", good + long, checkLengths, []string{"store/p.go", "603 lines", "split"}},
		{"a long generated file", "store/p.go", "// Code generated by x. DO NOT EDIT.\n" + good + long, checkLengths, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := c.check(readTree(t, fstest.MapFS{
				c.path:          {Data: []byte(c.text)},
				"driver/own.go": {Data: []byte("// Package driver is here so that no tree is empty.\npackage driver\n")},
			}))
			if len(c.want) == 0 {
				if len(got) > 0 {
					t.Fatalf("unexpected errors: %q", got)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("got %d errors, want one: %q", len(got), got)
			}
			for _, part := range c.want {
				if !strings.Contains(got[0], part) {
					t.Errorf("the error does not contain %q:\n%s", part, got[0])
				}
			}
		})
	}
}
