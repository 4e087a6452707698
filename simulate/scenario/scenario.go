// Package scenario reads test scenarios for a project: the requests, their times and the
// expected final state. Package converge runs these files in its own test world, and
// package simulate runs them through the whole system.
//
// The package owns the file format. It does not know how a scenario is run.
package scenario

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// Scenario is one scenario.
type Scenario struct {
	Name    string   `yaml:"-"`
	Why     string   `yaml:"why"`
	Actions []Action `yaml:"actions"`
	// Final is the number of running instances of each service and the version of their
	// definition, as "2 of v1". Other services must have no instances.
	Final map[string]string `yaml:"final"`
	// Kept lists the services that must still have the instances created by the first
	// action. That action then runs until everything is at rest.
	Kept []string `yaml:"kept"`
	// Status is the final status of services; converged by default.
	Status map[string]mariposa.Status `yaml:"status"`
	// Ends is how the task of the last action ends; completed by default.
	Ends mariposa.TaskState `yaml:"ends"`
	// Fails lists, by service, the state of another service in which new instances fail.
	Fails map[string]Cause `yaml:"fails"`
	// Never lists, by service, versions whose definition no instance ever gets.
	Never map[string][]int `yaml:"never"`
	// Serves lists the services that are never without a running instance once they
	// have had one.
	Serves []string `yaml:"serves"`
}

// Cause is the reason why instances of a service fail: those with the definition of a
// given version fail on start while another service has a desired instance with a given
// definition.
type Cause struct {
	Of    int    `yaml:"of"`    // the version whose instances fail; 0: any
	While string `yaml:"while"` // the other service
	Is    int    `yaml:"is"`    // the version of the other service
}

// Action is one request or one external event.
type Action struct {
	// After is the number of node operations that must complete after the previous
	// action. Nil: wait until everything is at rest.
	After  *int           `yaml:"after"`
	Submit map[string]any `yaml:"submit"` // services of a manifest, all of type dummy
	Scale  map[string]int `yaml:"scale"`
	// Do is one of: start, stop, delete, revert and resubmit; freeze, thaw, pause, resume
	// and converge of the project or the named service; break and mend, which make all
	// new instances of the named service fail or start normally again; lose and return of
	// the named node.
	Do   string `yaml:"do"`
	Name string `yaml:"name"`
	// Version limits a stop to the instances of one version.
	Version int `yaml:"version"`
}

// NodeMemory is the memory of each node. An instance that needs more fits on no node.
const NodeMemory = 64 << 30

// Scope returns the service that an action is about, or nothing for the whole project.
func (a Action) Scope() []string {
	if a.Name == "" {
		return nil
	}
	return []string{a.Name}
}

// Read reads all scenarios in a directory, sorted by name.
func Read(dir string) ([]Scenario, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("look for scenarios: %w", err)
	}
	slices.Sort(files)
	var out []Scenario
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read a scenario: %w", err)
		}
		s := Scenario{Name: strings.TrimSuffix(filepath.Base(file), ".yaml")}
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// Manifest returns the manifest to submit. It declares the volumes that services use.
func (a Action) Manifest() ([]byte, error) {
	all, volumes := map[string]any{}, map[string]any{}
	for name, keys := range a.Submit {
		s := map[string]any{"compute_type": "dummy"}
		if keys, ok := keys.(map[string]any); ok {
			maps.Copy(s, keys)
		}
		all[name] = s
		mounts, _ := s["volumes"].([]any)
		for _, m := range mounts {
			volume, _, _ := strings.Cut(fmt.Sprint(m), ":")
			volumes[volume] = nil
		}
	}
	whole := map[string]any{"services": all}
	if len(volumes) > 0 {
		whole["volumes"] = volumes
	}
	text, err := yaml.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("write a manifest: %w", err)
	}
	return text, nil
}

// StatusOf returns the expected final status of a service.
func (s Scenario) StatusOf(service string) mariposa.Status {
	if st := s.Status[service]; st != "" {
		return st
	}
	return mariposa.StatusConverged
}

// LastEnds returns how the task of the last action should end.
func (s Scenario) LastEnds() mariposa.TaskState {
	if s.Ends != "" {
		return s.Ends
	}
	return mariposa.TaskCompleted
}
