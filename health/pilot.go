package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// pilotStatus is the status page of ContainerPilot: the jobs that it advertises, with the
// results of their own checks, and the services that they watch.
type pilotStatus struct {
	Services []struct{ Name, Status string }
}

// probePilot reads the status page of ContainerPilot. The check passes if no job fails its own
// checks. Which jobs there are is read each time, because it may change.
func probePilot(conn net.Conn, address string) error {
	return request(conn, address, "/status", func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("answered %d to /status", resp.StatusCode)
		}
		body, err := readBody(resp)
		if err != nil {
			return err
		}
		var page pilotStatus
		if err := json.Unmarshal(body, &page); err != nil {
			return errors.New("answered /status with something that ContainerPilot does not write")
		}
		return judgePilot(&page)
	})
}

// judgePilot returns why ContainerPilot says that an instance is not healthy; nil if it is.
func judgePilot(page *pilotStatus) error {
	var failing []string
	for _, s := range page.Services {
		switch s.Status {
		case "healthy", "completed":
		default:
			failing = append(failing, Shorten(s.Name)+" is "+Shorten(s.Status))
		}
	}
	if len(failing) == 0 {
		return nil
	}
	const most = 3
	if n := len(failing) - most; n > 0 {
		failing = append(failing[:most], fmt.Sprintf("%d more", n))
	}
	return errors.New("says that " + strings.Join(failing, ", "))
}
