package cli

import (
	"testing"

	"mariposa/client"
	"mariposa/contract"
)

// The versions of a project that does not get on: the second web takes an hour to start.
const (
	calmManifest = `services:
  backend: {compute_type: dummy, volumes: ["data:/data"], reschedule: {never: true}}
  web: {compute_type: dummy, scale: 2, depends_on: [backend], networks: [inner], reschedule: {never: true}}
networks: {inner: {}}
volumes: {data: {}}
`
	badManifest = `services:
  backend: {compute_type: dummy, volumes: ["data:/data"], reschedule: {never: true}}
  front: {compute_type: dummy, depends_on: [web, slow]}
  slow: {compute_type: dummy, dummy: {wait_secs: 3600}, depends_on: [backend], networks: [inner]}
  web: {compute_type: dummy, scale: 2, environment: {V: "2"}, dummy: {wait_secs: 3600}, depends_on: [backend], networks: [inner], reschedule: {never: true}}
networks: {inner: {}}
volumes: {data: {}}
`
	waitingManifest = `services:
  web: {compute_type: dummy, environment: {P: "{{ .meta.password }}"}}
metadata: {password: {required: true, secret: true}}
`
)

// badDay is a server on which nothing goes well.
func badDay(t *testing.T) *realServer {
	t.Helper()
	s := newTeamServerWith(t, "node1", "node2+")
	ctx := t.Context()
	s.again(t, calmManifest)
	_, err := s.ActOnNode(ctx, "node2", contract.NodeAction{Action: "lose"})
	must(t, err)
	s.awaitDocument("/v1/nodes/node2", `"status": ?"unknown"`)
	s.awaitDocument("/v1/instances?project=hello", `"state": ?"unknown"`)
	_, err = s.UpdateManifest(ctx, "hello", []byte(badManifest), client.Update{Force: true, Message: "greet\x1b[2J louder"})
	must(t, err)
	s.awaitDocument("/v1/instances?project=hello", `"state": ?"provisioning".*"state": ?"provisioning"`)
	_, err = s.AddTag(ctx, "hello", "loud", "2")
	must(t, err)
	_, err = s.CreateProject(ctx, "waiting", []byte(waitingManifest), "")
	must(t, err)
	s.awaitDocument("/v1/projects/waiting", `"status": ?"blocked"`)
	return s
}
