package mdata

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
)

// Client asks for values, as a guest does. It is not for concurrent use.
type Client struct {
	conn  io.ReadWriter
	lines *bufio.Reader
}

// Connect negotiates the version. What is left over from an earlier conversation is skipped.
func Connect(conn io.ReadWriter) (*Client, error) {
	c := &Client{conn, bufio.NewReaderSize(conn, 64<<10)}
	if _, err := io.WriteString(conn, "\n"+negotiate+"\n"); err != nil {
		return nil, err
	}
	for {
		line, err := c.read()
		if err != nil {
			return nil, err
		}
		if line == negotiated {
			return c, nil
		}
	}
}

func (c *Client) read() (string, error) {
	line, err := c.lines.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

// ask sends a request and returns the payload of its response.
func (c *Client) ask(command, payload string, has bool) (string, error) {
	request := frame{id: fmt.Sprintf("%08x", rand.Uint32()), word: command, payload: payload, has: has}
	if _, err := io.WriteString(c.conn, request.encode()); err != nil {
		return "", err
	}
	for {
		line, err := c.read()
		if err != nil {
			return "", err
		}
		response, err := decode(line)
		if err != nil || response.id != request.id {
			continue // of an earlier request
		}
		switch response.word {
		case success:
			return response.payload, nil
		case notFound:
			return "", ErrNotFound
		}
		return "", errors.New(response.payload)
	}
}

// Get returns a value, or ErrNotFound.
func (c *Client) Get(key string) (string, error) { return c.ask(commandGet, key, true) }

// Put sets a value.
func (c *Client) Put(key, value string) error {
	b64 := base64.StdEncoding.EncodeToString
	_, err := c.ask(commandPut, b64([]byte(key))+" "+b64([]byte(value)), true)
	return err
}

// Delete removes a value.
func (c *Client) Delete(key string) error {
	_, err := c.ask(commandDel, key, true)
	return err
}

// Keys returns the names of all values.
func (c *Client) Keys() ([]string, error) {
	text, err := c.ask(commandKeys, "", false)
	if err != nil || text == "" {
		return nil, err
	}
	return strings.Split(text, "\n"), nil
}
