<?php
$db = new PDO('mysql:host=db;dbname=shop', 'web', "only in this family's network");
$db->prepare('INSERT INTO visit (server) VALUES (?)')->execute([gethostname()]);
$visits = $db->query('SELECT COUNT(*) FROM visit')->fetchColumn();
header('Content-Type: text/plain');
echo "visit $visits, served by ", gethostname(), "\n";
