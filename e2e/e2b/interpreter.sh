#!/bin/sh
# One request to the server of E2B's code interpreter, on standard input: its HTTP interface alone. What it runs is the shell's,
# not Python; variables stay from one execution to the next. `nc -ll -p 49999 -e` starts one for each connection.
kept=/run/interpreter

answer() { printf 'HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n' "$1"; }

# What the body says of a name: a text without its quotes, as JSON writes it.
field() { printf '%s' "$body" | sed -n "s/.*\"$1\": *\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p"; }

lines() {
    while IFS= read -r line; do
        printf '{"type":"%s","text":"%s\\n","timestamp":1}\n' "$1" "$line"
        last=$line
    done
}

execute() {
    code=$(printf '%b' "$(field code | sed 's/\\"/"/g')")
    folder=/
    [ -z "$(field context_id)" ] || folder=$(cat "$kept.folder")
    answer '200 OK'
    {
        (
            set -a
            cd "$folder"
            [ ! -f "$kept" ] || . "$kept"
            eval "$code"
            export -p >"$kept"
        ) 2>"$kept.err"
        echo "$?" >"$kept.code"
    } | {
        last=
        lines stdout
        [ -z "$last" ] || printf '{"type":"result","text":"%s","is_main_result":true}\n' "$last"
    }
    lines stderr <"$kept.err"
    code=$(cat "$kept.code")
    [ "$code" = 0 ] || printf '{"type":"error","name":"Exit","value":"%s","traceback":"none"}\n' "$code"
    count=$(($(cat "$kept.count" 2>/dev/null || echo 0) + 1))
    echo "$count" >"$kept.count"
    printf '{"type":"number_of_executions","execution_count":%s}\n' "$count"
}

context() { printf '{"id":"c1","language":"python","cwd":"%s"}' "$(cat "$kept.folder")"; }

read -r method path _
length=0
while read -r line; do
    line=$(printf '%s' "$line" | tr -d '\r')
    case $line in
    '') break ;;
    [Cc]ontent-[Ll]ength:*) length=${line#*:} ;;
    [Tt]ransfer-[Ee]ncoding:*) length=chunked ;;
    esac
done
body=
if [ "$length" = chunked ]; then
    while read -r size; do
        size=$((0x$(printf '%s' "$size" | tr -d '\r')))
        [ "$size" -gt 0 ] || break
        body=$body$(head -c "$size")
        read -r _
    done
else
    body=$(head -c $((length)))
fi
case "$method $path" in
'POST /execute') execute ;;
'POST /contexts')
    field cwd >"$kept.folder"
    answer '200 OK'
    context
    ;;
'GET /contexts')
    answer '200 OK'
    [ -f "$kept.folder" ] && printf '[%s]' "$(context)" || printf '[]'
    ;;
'POST /contexts/c1/restart')
    rm -f "$kept"
    answer '200 OK'
    ;;
'DELETE /contexts/c1')
    rm -f "$kept.folder"
    answer '204 No Content'
    ;;
*) answer '404 Not Found' ;;
esac
